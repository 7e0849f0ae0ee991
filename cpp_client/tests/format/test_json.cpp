#include <gtest/gtest.h>

#include <functional>

#include "format/json/checked_json.h"
#include "format/json/json.h"
#include "format/json/signature_json.h"
#include "format/manifest/manifest.h"
#include "format/zip_directory.h"
#include "recsys/error.h"
#include "tests/colliding_names.h"

namespace recsys {
namespace {

TEST(ParseJson, KeepsTheLastOfFieldsThatStandTwiceAtThePlaceOfTheFirst) {
  EXPECT_EQ(ParseJson(R"({"b": 1, "a": 2, "b": {"c": 1, "c": 2}})").dump(),
            R"({"b":{"c":2},"a":2})");
}

TEST(ParseJson, RefusesWhatIsNoJsonOrTooDeep) {
  for (const std::string text :
       {"", "{", "[1,]", "nan", "NaN", "\xff", "\"\\ud800\"", "1e999", "[1] x", "{\"a\": 1,}"}) {
    EXPECT_THROW(ParseJson(text), JsonError) << text;
  }
  EXPECT_THROW(ParseJson(std::string(100'000, '[')), JsonError);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THROW(ParseJson(objects), JsonError);
  EXPECT_NO_THROW(ParseJson(std::string(100, '[') + std::string(100, ']')));
}

TEST(ParseJson, TakesNoMoreThanProportionateTimeForManyFields) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"" + std::to_string(i) + "\":0,";
  EXPECT_EQ(ParseJson(text + "\"x\":0}").size(), 200'001U);
}

TEST(ParseJson, TakesNoLongerForNamesThatSomebodyHasChosenToBeSlow) {
  const std::vector<std::string> chosen = CollidingNames(5000);
  ASSERT_EQ(std::hash<std::string_view>()(chosen.front()),
            std::hash<std::string_view>()(chosen.back()));
  std::vector<std::string> others;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    others.push_back(std::to_string(1'000'000'000'000'000 + i));
  }
  const auto seconds_of = [](const std::vector<std::string>& names) {
    const std::string text = ObjectOfNames(names);
    return CpuSeconds([&] { EXPECT_EQ(ParseJson(text).size(), names.size()); });
  };
  const double usual_s = seconds_of(others);
  EXPECT_LT(seconds_of(chosen), 8 * usual_s + 0.05);
}

TEST(StrOf, WritesTheBeginningOfAValue) {
  EXPECT_EQ(StrOf(ParseJson(R"({"a": [true, null, 1.0, "x'y"]})")),
            R"({"a":[true,null,1.0,"x'y"]})");
  EXPECT_EQ(StrOf(Json(std::string("\xff"))), "\xff");
  EXPECT_EQ(StrOf(Json{std::string("\xff")}), "[\"\ufffd\"]");
  EXPECT_EQ(StrOf(ParseJson("\"x\"")), "x");
  std::string many = "[0";
  for (int i = 0; i < 1000; ++i) many += ",0";
  EXPECT_EQ(StrOf(ParseJson(many + "]")).size(), 80U);
}

TEST(ReadManifestTest, RefusesWhatIsNoManifest) {
  const auto kind_of = [](const std::string& text) {
    try {
      ReadManifest(text);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  EXPECT_EQ(kind_of("x"), ErrorKind::kManifest);
  EXPECT_EQ(kind_of("[]"), ErrorKind::kForeignFile);
  EXPECT_EQ(kind_of(R"({"format": "x"})"), ErrorKind::kForeignFile);
  EXPECT_EQ(kind_of(R"({"format": "recsys-artifact"})"), ErrorKind::kManifest);
  EXPECT_EQ(kind_of(R"({"format": "recsys-artifact", "format_version": 1000})"),
            ErrorKind::kNewerFormat);
  EXPECT_EQ(kind_of(R"({"format": "recsys-artifact", "format_version": 1})"), ErrorKind::kManifest);
}

TEST(SignatureJsonTest, KeepsTheColumnsOfDenseInputs) {
  const auto read = [](const std::string& columns) {
    return SignatureFromJson(
        ParseJson(R"({"dense": [{"name": "x", "width": 2)" + columns +
                  R"(}], "sparse": [], "outputs": [{"name": "y", "shape": []}]})"));
  };
  EXPECT_TRUE(read("").dense[0].columns.empty());
  EXPECT_EQ(SignatureToJson(read(""))["dense"][0].count("columns"), 0U);
  const Signature named = read(R"(, "columns": ["a", "b"])");
  EXPECT_EQ(named.dense[0].columns, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(SignatureFromJson(SignatureToJson(named)).dense[0].columns, named.dense[0].columns);
  for (const char* wrong :
       {R"(["a"])", R"(["a", "a"])", R"(["a", ""])", R"(["a", 1])", R"("ab")"}) {
    EXPECT_THROW(read(std::string(", \"columns\": ") + wrong), Error) << wrong;
  }
}

TEST(SignatureJsonTest, KeepsTheTypesOfOutputs) {
  const auto read = [](const std::string& dtype) {
    return SignatureFromJson(ParseJson(R"({"dense": [{"name": "x", "width": 2}], "sparse": [], )"
                                       R"("outputs": [{"name": "y", "shape": [])" +
                                       dtype + "}]}"));
  };
  EXPECT_EQ(read("").outputs[0].type, OutputType::kFloat32);
  EXPECT_EQ(read(R"(, "dtype": "float32")").outputs[0].type, OutputType::kFloat32);
  EXPECT_EQ(SignatureToJson(read(""))["outputs"][0].count("dtype"), 0U);
  const Signature integers = SignatureFromJson(SignatureToJson(read(R"(, "dtype": "int64")")));
  EXPECT_EQ(integers.outputs[0].type, OutputType::kInt64);
  for (const char* wrong : {R"("int32")", R"("")", "8", "null"}) {
    EXPECT_THROW(read(std::string(", \"dtype\": ") + wrong), Error) << wrong;
  }
}

TEST(SignatureJsonTest, KeepsTheSizesOfBags) {
  const auto read = [](const std::string& size) {
    return SignatureFromJson(ParseJson(
        R"({"dense": [], "sparse": [{"name": "x", "pooling": "sum", "weighted": false, "tables": [])" +
        size + R"(}], "outputs": [{"name": "y", "shape": []}]})"));
  };
  EXPECT_EQ(read("").sparse[0].num_ids, std::nullopt);
  EXPECT_EQ(SignatureToJson(read(""))["sparse"][0].count("num_ids"), 0U);
  EXPECT_EQ(read(R"(, "num_ids": 0)").sparse[0].num_ids, 0);
  const Signature sized = SignatureFromJson(SignatureToJson(read(R"(, "num_ids": 20)")));
  EXPECT_EQ(sized.sparse[0].num_ids, 20);
  for (const char* wrong : {"-1", "1.0", R"("3")", "null"}) {
    EXPECT_THROW(read(std::string(", \"num_ids\": ") + wrong), Error) << wrong;
  }
}

TEST(SignatureJsonTest, KeepsWhichDimensionsAreTheBatchs) {
  const auto read = [](const std::string& dims, const std::string& batch = "request") {
    return SignatureFromJson(ParseJson(
        R"({"dense": [{"name": "x", "width": 2}], "sparse": [], "batch": ")" + batch +
        R"(", "outputs": [{"name": "y", "shape": [4, 2], "batch_dims": )" + dims + "}]}"));
  };
  using Dims = std::vector<std::int64_t>;
  EXPECT_EQ(read("[0]", "rows").outputs[0].Dims(7), (Dims{7, 4, 2}));
  EXPECT_EQ(SignatureToJson(read("[0]"))["outputs"][0].count("batch_dims"), 0U);
  EXPECT_EQ(read("[0, 1]").outputs[0].Dims(7), (Dims{7, 7, 4, 2}));
  EXPECT_EQ(read("[1]").outputs[0].Dims(-1), (Dims{4, -1, 2}));
  EXPECT_EQ(read("[1, 3]").outputs[0].num_elements(3), 72);
  EXPECT_EQ(read("[]").outputs[0].Dims(7), (Dims{4, 2}));
  EXPECT_EQ(read("[]").without_rows()->name, "y");
  EXPECT_EQ(read("[0]").without_rows(), nullptr);
  const Signature again = SignatureFromJson(SignatureToJson(read("[0, 1]")));
  EXPECT_EQ(again.outputs[0].batch_dims, (Dims{0, 1}));
  EXPECT_THROW(read("[0, 1]", "rows"), Error);
  for (const char* wrong : {"[3]", "[-1]", "[1, 0]", "[0, 0]", "0", R"(["0"])", "[0.0]", "null"}) {
    EXPECT_THROW(read(wrong), Error) << wrong;
  }
}

TEST(SignatureJsonTest, KeepsWhatABatchIs) {
  const auto read = [](const std::string& batch) {
    return SignatureFromJson(ParseJson(R"({"dense": [{"name": "x", "width": 2}], "sparse": [], )" +
                                       batch + R"("outputs": [{"name": "y", "shape": []}]})"));
  };
  EXPECT_FALSE(read("").by_request);
  EXPECT_FALSE(read(R"("batch": "rows", )").by_request);
  EXPECT_EQ(SignatureToJson(read("")).count("batch"), 0U);
  EXPECT_TRUE(SignatureFromJson(SignatureToJson(read(R"("batch": "request", )"))).by_request);
  EXPECT_THROW(read(R"("batch": "user", )"), Error);
}

TEST(Crc32Test, IsThatOfZipFiles) {
  EXPECT_EQ(Crc32("123456789"), 0xcbf43926U);
  EXPECT_EQ(Crc32(""), 0U);
}

TEST(ZipMembersTest, RefusesWhatIsCutOff) {
  for (const std::string& text : {std::string(), std::string("PK"), std::string("PK\5\6"),
                                  "PK\5\6" + std::string(18, '\xff')}) {
    EXPECT_THROW(ZipMembers(text), ZipError);
  }
  EXPECT_TRUE(ZipMembers("PK\5\6" + std::string(18, '\0')).empty());
}

}  // namespace
}  // namespace recsys
