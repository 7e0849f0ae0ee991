// The reader of files: what it reads, and that nothing in a file can crash it.

#include <gtest/gtest.h>

#include <random>

#include "config/given.h"
#include "config/toml.h"
#include "tests/config/folder.h"

namespace recsys {
namespace {

constexpr char kDocument[] = R"(# a comment with [ and "
port = 8500
drain_timeout_s = 6e1
host = "a \"]\" \u00e9"
[source]
models = ["a", 'b[',
  """c""", # more
]
[defaults]
cpus = [0, 1]
limits = {max_batch_rows = 256, max_queue_bytes = "128MiB"}
[models."a.b".routing]
serve = '3'
[log]
as_json = true
[[other]]
when = 1979-05-27T07:32:00Z
at = 07:32:00
)";

TEST(Toml, ReadsEveryKindOfValue) {
  Toml read = ParseToml(kDocument);
  EXPECT_EQ(read.table["port"].whole, 8500);
  EXPECT_EQ(read.table["drain_timeout_s"].number, 60.0);
  EXPECT_EQ(read.table["host"].text, "a \"]\" \u00e9");
  EXPECT_EQ(read.table["source"].table["models"].Repr(), "['a', 'b[', 'c']");
  EXPECT_EQ(read.table["defaults"].table["cpus"].Str(), "[0, 1]");
  EXPECT_EQ(read.table["defaults"].table["limits"].Str(),
            "{'max_batch_rows': 256, 'max_queue_bytes': '128MiB'}");
  EXPECT_EQ(read.table["models"].table["a.b"].table["routing"].table["serve"].text, "3");
  EXPECT_EQ(read.table["log"].table["as_json"].Str(), "True");
  ASSERT_EQ(read.table["other"].items.size(), 1U);
  EXPECT_EQ(read.table["other"].items[0].table["when"].kind, Toml::Kind::kOther);
}

TEST(Toml, TheLineOfAMistakeIsNamed) {
  EXPECT_NE(ErrorOf([] { ParseToml("port = 1\nhost =\n"); }).find("line 2"), std::string::npos);
}

TEST(Toml, BracketsThatDoNotCloseEachOtherAreRefused) {
  for (const char* text : {"a = [1 2", "a = [0, 1", "a = {b = 1", "a = [1}", "[a", "a = ]"}) {
    EXPECT_NE(ErrorOf([text] { ParseToml(text); }), "nothing was thrown") << text;
  }
}

TEST(Toml, NestingWithoutEndIsRefused) {
  for (const char* piece : {"[", "{a = ", "[{a = "}) {
    std::string text = "a = ";
    for (int i = 0; i < 100'000; ++i) text += piece;
    EXPECT_EQ(ErrorOf([&text] { ParseToml(text); }), "brackets are nested too deep at line 1");
  }
}

TEST(Toml, KeysOfPartsWithoutEndAreRefused) {
  std::string parts;
  for (int i = 0; i < 100'000; ++i) parts += i % 2 == 0 ? "a." : "\"b\" . ";
  for (const std::string& text : {"[" + parts + "a]", "[[" + parts + "a]]", parts + "a = 1"}) {
    EXPECT_EQ(ErrorOf([&text] { ParseToml(text); }), "a key has too many parts at line 1");
  }
  std::string numbers = "a.b.c = [1.5";
  for (int i = 0; i < 1000; ++i) numbers += ", 1.5";
  EXPECT_EQ(ParseToml(numbers + "]\n").table["a"].table["b"].table["c"].items.size(), 1001U);
}

TEST(Toml, NestingDoesNotHideBehindQuotesThatAreNoStrings) {
  const std::string deep(100'000, '[');
  for (const std::string& head : {std::string("a\" = "), std::string("a\r\" = "),
                                  std::string("a' = "), std::string("a\"b = 1\nx = ")}) {
    for (const char* tail : {"", "\"", "'"}) {
      EXPECT_NE(ErrorOf([&] { ParseToml(head + deep + tail); }), "nothing was thrown") << head;
    }
  }
  EXPECT_EQ(ErrorOf([] { ParseToml("[models.sm'l]"); }),
            "a quote stands in the middle of a word at line 1");
  EXPECT_EQ(ErrorOf([] { ParseToml("a = 1\nb = \"c\n"); }), "a string is not closed at line 2");
}

TEST(Toml, FilesThatAreSpoiledAtRandomAreReadOrRefused) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): the same files in every run
  const std::string document = kDocument;
  const std::string bytes = "[]{}\"'=.,#\n\r\t \\0x_-+:aetnfiTZ\x01";
  int num_refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = document.substr(0, random() % (document.size() + 1));
    for (unsigned i = random() % 4; i > 0 && !text.empty(); --i) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text.erase(at, 1 + random() % 5);
          break;
        case 1:
          text.insert(at, 1, bytes[random() % bytes.size()]);
          break;
        default:
          text[at] = bytes[random() % bytes.size()];
      }
    }
    try {
      ParseToml(text);
    } catch (const Error&) {
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 500);
  EXPECT_LT(num_refused, 3000);
}

}  // namespace
}  // namespace recsys
