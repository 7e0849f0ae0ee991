#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "recsys/error.h"
#include "server/http/json_numbers.h"
#include "server/http/json_value.h"
#include "server/http/rest_encoding.h"
#include "server/http/rest_route.h"
#include "tests/colliding_names.h"

namespace recsys {
namespace {

/// What it throws, or "" for nothing.
template <typename Call>
std::string ErrorOf(Call call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

JsonValue::Object Parsed(const std::string& text) { return ParseJsonBody(text, 1 << 20); }

std::string ParseError(const std::string& text) {
  return ErrorOf([&] { Parsed(text); });
}

const JsonValue& Member(const JsonValue::Object& object, const char* name) {
  const JsonValue* const found = FindMember(object, name);
  EXPECT_NE(found, nullptr) << name;
  return *found;
}

TEST(JsonBody, IsReadAsPythonReadsIt) {
  const auto body = Parsed(
      "\xef\xbb\xbf {\"a\" : [1, -2, 0, 1.5, -1e3, 1E400, true, false, null, \"x\"], "
      "\"b\":{}, \"n\":NaN, \"i\":-Infinity, \"big\":12345678901234567890, "
      "\"t\":\"\\u00e9\\n\\ud83d\\ude00\\/\", \"half\":\"\\ud800\", \"a\":[3]}\n");
  ASSERT_EQ(body.size(), 7U);
  // Of a name that stands twice the last counts.
  EXPECT_EQ(body[0].name, "a");
  EXPECT_EQ(*(*body[0].value.As<JsonValue::List>())[0].As<std::int64_t>(), 3);
  EXPECT_TRUE(std::isnan(*Member(body, "n").As<double>()));
  EXPECT_EQ(*Member(body, "i").As<double>(), -INFINITY);
  EXPECT_EQ(Member(body, "big").As<JsonValue::Big>()->digits, "12345678901234567890");
  EXPECT_EQ(*Member(body, "t").As<std::string>(), "\u00e9\n\U0001f600/");
  EXPECT_EQ(*Member(body, "half").As<std::string>(), "\xed\xa0\x80");
}

TEST(JsonBody, TakesNoLongerForNamesThatSomebodyHasChosenToBeSlow) {
  const std::vector<std::string> chosen = CollidingNames(5000);
  ASSERT_EQ(std::hash<std::string_view>()(chosen.front()),
            std::hash<std::string_view>()(chosen.back()));
  std::vector<std::string> others;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    others.push_back(std::to_string(1'000'000'000'000'000 + i));
  }
  const auto seconds_of = [](const std::vector<std::string>& names) {
    const std::string text = ObjectOfNames(names);
    return CpuSeconds([&] { EXPECT_EQ(Parsed(text).size(), names.size()); });
  };
  const double usual_s = seconds_of(others);
  EXPECT_LT(seconds_of(chosen), 8 * usual_s + 0.05);
}

TEST(JsonBody, OfNamesThatStandSeveralTimesKeepsThePlacesOfTheFirst) {
  const auto body = Parsed("{\"b\":1,\"a\":2,\"c\":3,\"a\":4,\"b\":5,\"a\":6}");
  std::string found;
  for (const JsonMember& member : body) found += member.name + member.value.Short();
  EXPECT_EQ(found, "b5a6c3");
}

TEST(JsonBody, KnowsTheMemoryThatItTakes) {
  std::string zeros = "0";
  for (int i = 1; i < 1000; ++i) zeros += ",0";
  const std::size_t list_bytes = 1000 * sizeof(JsonValue);
  EXPECT_GE(HeldBytes(Parsed("{\"a\":[" + zeros + "]}")), list_bytes);
  EXPECT_GE(HeldBytes(Parsed("{\"a\":{\"b\":[[" + zeros + "],[" + zeros + "]]}}")), 2 * list_bytes);
  EXPECT_GE(HeldBytes(Parsed("{\"" + std::string(500, 'a') + "\":\"" + std::string(700, 'b') +
                             "\",\"c\":" + std::string(300, '9') + "}")),
            1500U);
  EXPECT_LT(HeldBytes(Parsed("{\"a\":1}")), 1000U);
}

TEST(JsonBody, KeepsEveryBitOfAnInt64) {
  const auto body =
      Parsed("{\"a\":[9223372036854775807,-9223372036854775808,9223372036854775808]}");
  const auto& list = *Member(body, "a").As<JsonValue::List>();
  EXPECT_EQ(*list[0].As<std::int64_t>(), INT64_MAX);
  EXPECT_EQ(*list[1].As<std::int64_t>(), INT64_MIN);
  EXPECT_NE(list[2].As<JsonValue::Big>(), nullptr);
}

TEST(JsonBody, ThatIsNoneIsRefusedInPythonsWords) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "body: got 0 bytes that are not JSON (Expecting value: line 1 column 1 (char 0))"},
      {"{",
       "body: got 1 bytes that are not JSON (Expecting property name enclosed in double "
       "quotes: line 1 column 2 (char 1))"},
      {"{}x", "body: got 3 bytes that are not JSON (Extra data: line 1 column 3 (char 2))"},
      {"{\n\"\u00e9\":\n x}",
       "body: got 11 bytes that are not JSON (Expecting value: line 3 column 2 (char 8))"},
      {"[1 2]",
       "body: got 5 bytes that are not JSON (Expecting ',' delimiter: line 1 column 4 "
       "(char 3))"},
      {"{\"a\" 1}",
       "body: got 7 bytes that are not JSON (Expecting ':' delimiter: line 1 column 6 "
       "(char 5))"},
      {"\"abc",
       "body: got 4 bytes that are not JSON (Unterminated string starting at: line 1 "
       "column 1 (char 0))"},
      {"[1]", "body: got a list, expected an object"},
      {"null", "body: got null, expected an object"},
      {"3", "body: got a whole number, expected an object"},
      {"\xff\xfe", "body: got 2 bytes that are not JSON in UTF-8, or nested too deep"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(ParseError(text), expected) << text;
  const std::string deep(100'000, '[');
  EXPECT_EQ(ParseError(deep),
            "body: got 100000 bytes that are not JSON in UTF-8, or nested too deep");
  EXPECT_NE(ParseError("{\"a\":" + std::string(5000, '9') + "}"), "");
  for (const char* const text :
       {"01", "1.", "-", "+1", ".5", "1e", "tru", "[1,]", "{\"a\":1,}", "'a'", "\"\\x\"",
        "\"\\u12g4\"", "\"\n\"", "[", "{\"a\"", "{\"a\":1"}) {
    EXPECT_NE(ParseError(text), "") << text;
  }
}

TEST(JsonBody, BeyondItsLimitIsNotLookedAt) {
  try {
    ParseJsonBody("{}   ", 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBodyTooLarge);
    EXPECT_STREQ(error.what(),
                 "body: got 5 bytes of JSON, expected at most 4; split the request, send binary "
                 "tensors, or use the gRPC port");
  }
}

TEST(JsonEntry, OfAnotherKindIsNamed) {
  const auto body = Parsed("{\"a\":{},\"n\":null,\"f\":1}");
  EXPECT_EQ(ErrorOf([&] { FindEntry<JsonValue::List>(body, "a", "body"); }),
            "body['a']: got an object, expected a list");
  EXPECT_EQ(ErrorOf([&] { FindEntry<bool>(body, "f", "body"); }),
            "body['f']: got a whole number, expected true or false");
  EXPECT_EQ(FindEntry<std::string>(body, "n", "body"), nullptr);
  EXPECT_EQ(FindEntry<std::string>(body, "x", "body"), nullptr);
  EXPECT_EQ(ErrorOf([&] { ObjectOf(Member(body, "f"), "inputs[0]"); }),
            "inputs[0]: got a whole number, expected an object");
}

std::string FlatShape(const std::string& list) {
  const auto body = Parsed("{\"a\":" + list + "}");
  return ListText(Flat("f", *Member(body, "a").As<JsonValue::List>()).shape);
}

TEST(FlatList, HasTheShapeOfItsLists) {
  EXPECT_EQ(FlatShape("[]"), "[0]");
  EXPECT_EQ(FlatShape("[1,2]"), "[2]");
  EXPECT_EQ(FlatShape("[[1,2,3],[4,5,6]]"), "[2, 3]");
  EXPECT_EQ(FlatShape("[[],[]]"), "[2, 0]");
  EXPECT_EQ(FlatShape("[1,[2]]"), "[2]");
  for (const char* const list : {"[[1],[2,3]]", "[[1],2]", "[[[1]],[2]]"}) {
    EXPECT_EQ(ErrorOf([&] { FlatShape(list); }),
              "f: got lists of unequal lengths, expected rows of equal ones");
  }
}

template <typename T>
std::vector<T> Packed(const std::string& list, NumberType type) {
  const auto body = Parsed("{\"a\":" + list + "}");
  OwnedBytes owned;
  const auto flat = Flat("f", *Member(body, "a").As<JsonValue::List>());
  const std::string_view data = Pack("f", flat.entries, type, &owned);
  std::vector<T> numbers(data.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), data.data(), data.size());
  return numbers;
}

TEST(Pack, MakesFloatsAsNumpyDoes) {
  const auto floats = Packed<float>(
      "[1, 0.1, 1e39, -1e39, 3.4028235677973366e38, 3.4028235677973362e38, "
      "100000000000000000000, 1e-50]",
      NumberType::kFloat32);
  const std::vector<float> expected = {1.0F,     0.1F,          INFINITY, -INFINITY,
                                       INFINITY, 3.4028234e38F, 1e20F,    0.0F};
  EXPECT_EQ(floats, expected);
}

TEST(Pack, NeverRoundsAnId) {
  EXPECT_EQ(Packed<std::int64_t>("[9007199254740993, -1]", NumberType::kInt64),
            (std::vector<std::int64_t>{9007199254740993, -1}));
}

TEST(Pack, RefusesWhatIsNoSuchNumber) {
  const auto error = [](const std::string& list, NumberType type) {
    return ErrorOf([&] { Packed<char>(list, type); });
  };
  EXPECT_EQ(error("[1.0]", NumberType::kInt64), "f: got a number, expected whole numbers alone");
  EXPECT_EQ(error("[\"1\", null, true]", NumberType::kFloat32),
            "f: got a text and null and true or false, expected numbers alone");
  EXPECT_EQ(error("[9223372036854775808]", NumberType::kInt64),
            "f: got a number beyond the range of int64");
  EXPECT_EQ(error("[2147483648]", NumberType::kInt32), "f: got a number beyond the range of int32");
  EXPECT_EQ(error("[1" + std::string(400, '0') + "]", NumberType::kFloat32),
            "f: got a number beyond the range of float32");
}

/// A hundred bytes, compressed: zlib.compress(b"{}" * 50), gzip.compress(b"{}" * 50, mtime=0).
std::string Deflated() {
  return std::string("\x78\x9c\xab\xae\xad\xa6\x39\x04\x00\x8e\xd1\x30\x71", 13);
}
std::string Gzipped() {
  return std::string(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\xae\xad\xa6\x39\x04\x00\xe1\xe9\x06\xea\x64\x00"
      "\x00\x00",
      25);
}

TEST(Inflate, GivesWhatWasCompressed) {
  for (const std::string& data : {Deflated(), Gzipped()}) {
    EXPECT_EQ(Inflate(data, 100).size(), 100U);
    EXPECT_EQ(Inflate(data, 1 << 20).substr(0, 4), "{}{}");
  }
}

TEST(Inflate, RefusesWhatIsBrokenAndWhatIsTooMuch) {
  const auto error = [](const std::string& data, std::size_t max_bytes) {
    return ErrorOf([&] { Inflate(data, max_bytes); });
  };
  EXPECT_EQ(error("{}", 100), "body: got 2 bytes that are neither gzip nor deflate");
  EXPECT_EQ(error("", 100), "body: got 0 compressed bytes that end too early");
  EXPECT_EQ(error(Gzipped().substr(0, 24), 100),
            "body: got 24 compressed bytes that end too early");
  EXPECT_EQ(error(Gzipped() + "x", 100), "body: got 1 bytes after the compressed ones");
  EXPECT_EQ(error(Deflated(), 99),
            "body: got more than 99 bytes once it was inflated, expected at most so many");
}

std::string Shown(const std::string& path) {
  const auto route = FindRoute(path);
  if (!route) return "none";
  return std::to_string(static_cast<int>(route->action)) + "|" + route->model + "|" +
         route->version;
}

TEST(RestRoute, KnowsTheAddressesThatThereAre) {
  EXPECT_EQ(Shown("/v2"), "0||");
  EXPECT_EQ(Shown("/v2/health/live"), "1||");
  EXPECT_EQ(Shown("/v2/health/ready"), "2||");
  EXPECT_EQ(Shown("/v2/repository/index"), "3||");
  EXPECT_EQ(Shown("/v2/models/a%20b"), "4|a b|");
  EXPECT_EQ(Shown("/v2/models/m/versions/7"), "4|m|7");
  EXPECT_EQ(Shown("/v2/models/m/versions/7/ready"), "5|m|7");
  EXPECT_EQ(Shown("/v2/models/m/config"), "6|m|");
  EXPECT_EQ(Shown("/v2/models/m/stats"), "7|m|");
  EXPECT_EQ(Shown("/v2/models/stats"), "7||");
  EXPECT_EQ(Shown("/v2/models/m/infer"), "8|m|");
  EXPECT_EQ(Shown("/v1/models/m:predict"), "9|m|");
  EXPECT_EQ(Shown("/v1/models/m/versions/7:predict"), "9|m|7");
  for (const char* const path :
       {"", "/", "/v2/", "/v3", "/v2/models", "/v2/models/", "/v2/models/m/", "/v2/models/m/load",
        "/v2/models/m/ready/x", "/v2/health", "/v2/../../etc/passwd", "/v1/models/m",
        "/v1/models/:predict", "/v1/models/m/versions/:predict", "/v1/models/m/7:predict",
        "/v2/repository/models/m/load", "*", "http://x/v2"}) {
    EXPECT_EQ(Shown(path), "none") << path;
  }
}

TEST(RestRoute, TimeoutIsTheOnlyParameter) {
  EXPECT_EQ(TimeoutOf(""), std::nullopt);
  EXPECT_EQ(TimeoutOf("timeout_ms=250"), 0.25);
  EXPECT_EQ(TimeoutOf("timeout%5fms=1&timeout_ms=x"), 0.001);
  EXPECT_EQ(ErrorOf([] { TimeoutOf("x=1"); }),
            "address: got an unknown parameter 'x', expected 'timeout_ms' at most");
  for (const char* const text : {"-1", "soon", "1.5", "", "+1", "1234567890123"}) {
    EXPECT_EQ(
        ErrorOf([&] { TimeoutOf(std::string("timeout_ms=") + text); }).rfind("timeout_ms: got ", 0),
        0U)
        << text;
  }
}

}  // namespace
}  // namespace recsys
