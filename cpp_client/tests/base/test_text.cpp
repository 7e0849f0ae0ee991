#include <gtest/gtest.h>

#include <limits>

#include "base/hash/sha256.h"
#include "base/text.h"

namespace recsys {
namespace {

TEST(Repr, QuotesATextAndEscapesWhatLogsMustNotHold) {
  EXPECT_EQ(Repr(""), "''");
  EXPECT_EQ(Repr("it's"), "\"it's\"");
  EXPECT_EQ(Repr("it's \"it\""), R"('it\'s "it"')");
  EXPECT_EQ(Repr("\"it\""), "'\"it\"'");
  EXPECT_EQ(Repr(std::string("a\\b\t\n\r\0\x7f", 8)), R"('a\\b\x09\n\x0d\x00\x7f')");
  EXPECT_EQ(Repr("\x1b[31m"), R"('\x1b[31m')");
  EXPECT_EQ(Repr("größe 評価 \U0001f600"), "'größe 評価 \U0001f600'");
  // The next line, a line's and a paragraph's separator, directions, and what has no width.
  EXPECT_EQ(Repr("\u0085\u2028\u2029"), R"('\xc2\x85\xe2\x80\xa8\xe2\x80\xa9')");
  EXPECT_EQ(Repr("\u202e\u2066\u200b\ufeff"),
            R"('\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8b\xef\xbb\xbf')");
}

TEST(Repr, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(Repr("a\xff\xc3"), R"('a\xff\xc3')");
  EXPECT_EQ(Repr("\xed\xa0\x80"), R"('\xed\xa0\x80')");
}

TEST(Short, KeepsSixtyFourCharacters) {
  std::string text;
  for (int i = 0; i < 64; ++i) text += "ü";
  EXPECT_EQ(Short(text), "'" + text + "'");
  EXPECT_EQ(Short(text + "x"), "'" + text.substr(0, 122) + "...'");
}

TEST(Listed, SaysHowManyMoreThereAre) {
  EXPECT_EQ(Listed({}), "none");
  EXPECT_EQ(Listed({"a", "b"}), "'a', 'b'");
  EXPECT_EQ(Listed({"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}),
            "'1', '2', '3', '4', '5', '6', '7', '8' and 2 more");
}

TEST(ReprFloat, WritesTheShortestTextThatReadsBackTheSame) {
  EXPECT_EQ(ReprFloat(0.1), "0.1");
  EXPECT_EQ(ReprFloat(-12.5), "-12.5");
  EXPECT_EQ(ReprFloat(1e16), "1e+16");
  EXPECT_EQ(ReprFloat(std::numeric_limits<double>::denorm_min()), "5e-324");
  EXPECT_EQ(ReprFloat(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(ReprFloat(-std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(IsUtf8, RefusesWhatIsOverlongASurrogateTooLargeOrCutOff) {
  EXPECT_TRUE(IsUtf8("größe 評価 \U0001f600"));
  EXPECT_FALSE(IsUtf8("\xc0\x80"));
  EXPECT_FALSE(IsUtf8("\xe0\x80\x80"));
  EXPECT_FALSE(IsUtf8("\xf0\x80\x80\x80"));
  EXPECT_FALSE(IsUtf8("\xed\xa0\x80"));
  EXPECT_FALSE(IsUtf8("\xf4\x90\x80\x80"));
  EXPECT_FALSE(IsUtf8("\xf5\x80\x80\x80"));
  EXPECT_FALSE(IsUtf8("a\xc3"));
  EXPECT_FALSE(IsUtf8("\x80"));
}

// FIPS 180-2, appendix B.
TEST(Sha256Test, IsThatOfTheStandard) {
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 digest;
  digest.Update("a", 1);
  digest.Update("bc", 2);
  EXPECT_EQ(HexOf(digest.Finish()), Sha256Hex("abc"));
}

}  // namespace
}  // namespace recsys
