#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "tests/wire/messages.h"
#include "wire/cursor.h"

namespace recsys {
namespace {

/// Whether all of a message can be passed over.
bool IsMessage(std::string_view message) {
  Cursor cursor(message);
  while (cursor.Next()) cursor.Skip();
  return cursor.ok();
}

/// The varint that field 3 holds.
std::uint64_t VarintOf(std::string_view varint, bool* ok) {
  const std::string message = "\x18" + std::string(varint);
  Cursor cursor(message);
  cursor.Next();
  const std::uint64_t number = cursor.ReadVarint();
  *ok = cursor.ok();
  return number;
}

std::string Repeated(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(CursorTest, AVarintHasUpToTenBytesOfWhichThoseAbove64BitsAreDropped) {
  bool ok = false;
  EXPECT_EQ(VarintOf({"\0", 1}, &ok), 0U);
  EXPECT_EQ(VarintOf("\xac\x02", &ok), 300U);
  EXPECT_EQ(VarintOf({"\x80\x00", 2}, &ok), 0U);
  EXPECT_EQ(VarintOf("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", &ok), ~0ULL);
  EXPECT_EQ(VarintOf("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", &ok), ~0ULL);
  EXPECT_TRUE(ok);
  VarintOf("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", &ok);
  EXPECT_FALSE(ok);
  VarintOf("\xff", &ok);
  EXPECT_FALSE(ok);
  VarintOf("", &ok);
  EXPECT_FALSE(ok);
}

TEST(CursorTest, ATagHasUpTo32Bits) {
  EXPECT_TRUE(IsMessage({"\xa2\x80\x80\x80\x0f\x00", 6}));
  EXPECT_FALSE(IsMessage({"\xa2\x80\x80\x80\x7f\x00", 6}));
  EXPECT_FALSE(IsMessage({"\xa2\x80\x80\x80\x80\x00\x00", 7}));
}

TEST(CursorTest, ALengthBeyondTheMessageOrOfMoreThanFiveBytesIsRefused) {
  EXPECT_TRUE(IsMessage({"\x22\x80\x80\x80\x80\x00", 6}));
  EXPECT_FALSE(IsMessage({"\x22\x80\x80\x80\x80\x80\x00", 7}));
  EXPECT_FALSE(IsMessage({"\x22\xff\xff\xff\xff\x7f", 6}));
  EXPECT_FALSE(IsMessage({"\x22\x02\x01", 3}));
}

TEST(CursorTest, FieldNumberZeroAndUnknownWireTypesAreRefused) {
  EXPECT_FALSE(IsMessage({"\x02\x00", 2}));
  EXPECT_FALSE(IsMessage({"\x00\x00", 2}));
  EXPECT_FALSE(IsMessage("\x0e"));
  EXPECT_FALSE(IsMessage("\x0f"));
}

TEST(CursorTest, FixedNumbersAreReadWhole) {
  EXPECT_FALSE(IsMessage("\x1d\x01\x02\x03"));
  EXPECT_TRUE(IsMessage("\x1d\x01\x02\x03\x04"));
  EXPECT_FALSE(IsMessage("\x19\x01\x02\x03\x04\x05\x06\x07"));
  const std::string both = FromHex("1d0100000019ffffffffffffff7f");
  Cursor cursor(both);
  ASSERT_TRUE(cursor.Next());
  EXPECT_EQ(cursor.ReadFixed32(), 1U);
  ASSERT_TRUE(cursor.Next());
  EXPECT_EQ(cursor.ReadFixed64(), 0x7FFFFFFFFFFFFFFFU);
  EXPECT_FALSE(cursor.Next());
  EXPECT_TRUE(cursor.ok());
}

TEST(CursorTest, UnknownGroupsArePassedOverUpToProtobufsDepth) {
  const auto groups = [](int count) {
    return Repeated("\xa3\x06", count) + Repeated("\xa4\x06", count);
  };
  EXPECT_TRUE(IsMessage(groups(100)));
  EXPECT_FALSE(IsMessage(groups(101)));
  EXPECT_FALSE(IsMessage(Repeated("\xa3\x06", 1'000'000)));
  EXPECT_TRUE(IsMessage("\xa3\x06\x22\x01x\x18\x05\xa4\x06"));
}

TEST(CursorTest, AMessageWithinTakesOneOfTheDepth) {
  for (const int count : {99, 100}) {
    const std::string outer = Field(4, Repeated("\xa3\x06", count) + Repeated("\xa4\x06", count));
    Cursor cursor(outer);
    ASSERT_TRUE(cursor.Next());
    Cursor inner = cursor.Enter();
    while (inner.Next()) inner.Skip();
    cursor.Leave(inner);
    EXPECT_EQ(cursor.ok(), count == 99);
  }
}

TEST(CursorTest, GroupsThatDoNotMatchAreRefused) {
  EXPECT_FALSE(IsMessage("\xa4\x06"));
  EXPECT_FALSE(IsMessage("\xa3\x06"));
  EXPECT_FALSE(IsMessage("\xa3\x06\xac\x06"));
  EXPECT_FALSE(IsMessage("\xa3\x06\xab\x06\xa4\x06\xac\x06"));
}

TEST(CursorTest, ATextMustBeUtf8AndBytesNeedNot) {
  const auto reads = [](std::string_view text, bool as_text) {
    const std::string message = Field(1, text);
    Cursor cursor(message);
    EXPECT_TRUE(cursor.Next());
    EXPECT_EQ(as_text ? cursor.ReadText() : cursor.ReadBytes(), text);
    return cursor.ok();
  };
  EXPECT_TRUE(reads("plain text, longer than eight bytes", true));
  EXPECT_TRUE(reads("\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80", true));
  for (const char* wrong :
       {"\xff\xfe", "12345678\xff", "\xc0\x80", "\xed\xa0\x80", "\xe4\xb8", "\xf4\x90\x80\x80"}) {
    EXPECT_FALSE(reads(wrong, true));
    EXPECT_TRUE(reads(wrong, false));
  }
}

TEST(CursorTest, APackedFieldHoldsWholeVarints) {
  EXPECT_TRUE(AreVarints(""));
  EXPECT_TRUE(AreVarints("\x01\xac\x02"));
  EXPECT_FALSE(AreVarints("\x01\xac"));
  EXPECT_TRUE(AreVarints(Repeated("\xff", 9) + "\x01"));
  EXPECT_FALSE(AreVarints(Repeated("\xff", 10) + "\x01"));
  const std::string packed = Repeated("\xff", 9) + "\x7f\xac\x02\x05";
  std::string_view left = packed;
  EXPECT_EQ(TakeVarint(&left), ~0ULL);
  EXPECT_EQ(TakeVarint(&left), 300U);
  EXPECT_EQ(TakeVarint(&left), 5U);
  EXPECT_TRUE(left.empty());
}

}  // namespace
}  // namespace recsys
