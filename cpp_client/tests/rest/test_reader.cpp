#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "rest/json/answers.h"
#include "rest/json/reader.h"

namespace recsys {
namespace {

std::string Written(double number) {
  std::string text;
  AppendJsonNumber(number, &text);
  return text;
}

bool IsWhole(const std::string& text, std::int64_t expected) {
  JsonReader json(text);
  std::int64_t number = 0;
  return json.Whole(&number) && json.AtEnd() && number == expected;
}

bool IsFloat(const std::string& text, float expected) {
  JsonReader json(text);
  float number = 0;
  return json.Float(&number) && json.AtEnd() && number == expected &&
         std::signbit(number) == std::signbit(expected);
}

bool IsRefused(const std::string& text) {
  JsonReader whole(text), number(text);
  std::int64_t id = 0;
  float value = 0;
  return !(whole.Whole(&id) && whole.AtEnd()) && !(number.Float(&value) && number.AtEnd());
}

TEST(JsonReaderTest, WholeNumbersAreExact) {
  EXPECT_TRUE(IsWhole(" 0 ", 0));
  EXPECT_TRUE(IsWhole("-0", 0));
  EXPECT_TRUE(IsWhole("9223372036854775807", std::numeric_limits<std::int64_t>::max()));
  EXPECT_TRUE(IsWhole("-9223372036854775808", std::numeric_limits<std::int64_t>::min()));
  for (const char* text : {"9223372036854775808", "1.0", "1e2", "true", "null", "\"1\""}) {
    EXPECT_FALSE(IsWhole(text, 1)) << text;
  }
}

TEST(JsonReaderTest, NumbersAreRoundedAsByPython) {
  EXPECT_TRUE(IsFloat("0.1", static_cast<float>(0.1)));
  EXPECT_TRUE(IsFloat("-2.5E-3", static_cast<float>(-2.5e-3)));
  EXPECT_TRUE(IsFloat("16777217", 16777216.0F));
  EXPECT_TRUE(IsFloat("-0", 0.0F));
  EXPECT_TRUE(IsFloat("-0.0", -0.0F));
  EXPECT_FALSE(IsFloat("1e39", std::numeric_limits<float>::infinity()));
  EXPECT_FALSE(IsFloat("1e400", std::numeric_limits<float>::infinity()));
}

TEST(JsonReaderTest, WhatIsNoNumberIsRefused) {
  for (const char* text : {"", "-", "+1", "01", "-01", ".5", "1.", "1e", "1e+", "0x1", "NaN",
                           "Infinity", "-Infinity", "1 2", "1,",
                           "\xef\xbb\xbf"
                           "1"}) {
    EXPECT_TRUE(IsRefused(text)) << text;
  }
  EXPECT_TRUE(IsRefused("0." + std::string(100, '1')));
}

TEST(JsonReaderTest, TextsWithoutEscapesAreTaken) {
  for (const auto& [text, is_taken] : {std::pair{R"("user")", true},
                                       {"\"gr\xc3\xbc\xc3\x9f\"", true},
                                       {R"("")", true},
                                       {R"("a\n")", false},
                                       {"\"a\nb\"", false},
                                       {"\"\xed\xa0\x80\"", false},
                                       {"\"\xff\"", false},
                                       {R"("open)", false},
                                       {"user", false}}) {
    JsonReader json(text);
    std::string_view read;
    EXPECT_EQ(json.Text(&read) && json.AtEnd(), is_taken) << text;
  }
}

TEST(JsonReaderTest, ListsAndObjectsAreClosed) {
  for (const auto& [text, is_taken] : {std::pair{"[]", true},
                                       {" [ 1 , 2 ] ", true},
                                       {"[1,]", false},
                                       {"[,1]", false},
                                       {"[1 2]", false},
                                       {"[1", false},
                                       {"1]", false},
                                       {"[1]]", false}}) {
    JsonReader json(text);
    std::int64_t number = 0;
    EXPECT_EQ(json.List([&] { return json.Whole(&number); }) && json.AtEnd(), is_taken) << text;
  }
  for (const auto& [text, is_taken] : {std::pair{"{}", true},
                                       {R"({ "a" : 1 , "b":2})", true},
                                       {R"({"a":1,})", false},
                                       {R"({"a" 1})", false},
                                       {R"({1:1})", false},
                                       {R"({"a":1)", false}}) {
    JsonReader json(text);
    std::int64_t number = 0;
    const auto field = [&](std::string_view) { return json.Whole(&number); };
    EXPECT_EQ(json.Object(field) && json.AtEnd(), is_taken) << text;
  }
}

TEST(JsonNumberTest, IsWrittenAsByPython) {
  EXPECT_EQ(Written(0.0), "0.0");
  EXPECT_EQ(Written(-0.0), "-0.0");
  EXPECT_EQ(Written(1.0), "1.0");
  EXPECT_EQ(Written(100000.0), "100000.0");
  EXPECT_EQ(Written(static_cast<double>(0.1F)), "0.10000000149011612");
  EXPECT_EQ(Written(1e-4), "0.0001");
  EXPECT_EQ(Written(1e-5), "1e-05");
  EXPECT_EQ(Written(-1.5e16), "-1.5e+16");
  EXPECT_EQ(Written(1e15), "1000000000000000.0");
  EXPECT_EQ(Written(std::numeric_limits<float>::denorm_min()), "1.401298464324817e-45");
  EXPECT_EQ(Written(std::numeric_limits<float>::max()), "3.4028234663852886e+38");
  EXPECT_EQ(Written(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_EQ(Written(-std::numeric_limits<double>::infinity()), "null");
}

}  // namespace
}  // namespace recsys
