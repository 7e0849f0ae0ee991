#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/wire/messages.h"
#include "wire/infer/infer_request.h"

namespace recsys {
namespace {

std::string Shape(const std::vector<std::int64_t>& sizes) {
  Writer writer;
  for (const std::int64_t size : sizes) writer.Varint(static_cast<std::uint64_t>(size));
  return Field(3, writer.Finish().Joined());
}

std::string Input(std::string_view name, std::string_view datatype,
                  const std::vector<std::int64_t>& sizes, std::string_view more = "") {
  return Field(5, Field(1, name) + Field(2, datatype) + Shape(sizes) + std::string(more));
}

std::string Parameter(std::string_view name, std::string_view value) {
  return Field(1, name) + Field(2, value);
}

InferMessage Read(std::string_view bytes, std::size_t max_kept = kMaxTensorsKept) {
  InferMessage message;
  EXPECT_TRUE(ReadInferMessage(bytes, max_kept, &message));
  return message;
}

bool IsMessage(std::string_view bytes) {
  InferMessage message;
  return ReadInferMessage(bytes, kMaxTensorsKept, &message);
}

TEST(InferMessageTest, EveryFieldIsReadInPlace) {
  const std::string bytes = Field(1, "m") + Field(2, "7") + Field(3, "id") +
                            Input("a", "FP32", {2, -1}) + Field(6, Field(1, "score")) +
                            Field(7, "raw") + Field(7, "");
  const InferMessage message = Read(bytes);
  EXPECT_EQ(message.model, "m");
  EXPECT_EQ(message.version, "7");
  EXPECT_EQ(message.id, "id");
  ASSERT_EQ(message.inputs.size(), 1U);
  EXPECT_EQ(message.inputs[0].tensor.name, "a");
  EXPECT_EQ(message.inputs[0].tensor.datatype, "FP32");
  EXPECT_EQ(message.inputs[0].tensor.shape.num_dims, 2U);
  EXPECT_EQ(message.inputs[0].tensor.shape.sizes[1], -1);
  EXPECT_FALSE(message.inputs[0].has_contents);
  EXPECT_EQ(message.outputs.at(0).name, "score");
  EXPECT_EQ(message.raw_contents, (std::vector<std::string_view>{"raw", ""}));
}

TEST(InferMessageTest, ShapesMayBeUnpackedAndLongerThanIsKept) {
  std::string numbers;
  for (int i = 0; i < 20; ++i) numbers += Number(3, 5);
  const InferMessage message = Read(Field(5, numbers));
  EXPECT_EQ(message.inputs.at(0).tensor.shape.num_dims, 20U);
}

TEST(InferMessageTest, WhatIsMalformedDeepInsideIsNoMessage) {
  EXPECT_FALSE(IsMessage("\xff"));
  EXPECT_FALSE(IsMessage(Field(5, Field(1, "\xff"))));
  EXPECT_FALSE(IsMessage(Field(5, Field(3, "\x80"))));
  EXPECT_FALSE(IsMessage(Field(5, Field(5, Field(6, "abc")))));
  EXPECT_FALSE(IsMessage(Field(5, Field(5, Field(7, "abcd")))));
  EXPECT_FALSE(IsMessage(Field(5, Field(5, Field(3, "\x80")))));
  EXPECT_TRUE(IsMessage(Field(5, Field(5, Field(8, "\x80")))));
  EXPECT_FALSE(IsMessage(Field(4, Parameter("\xff", ""))));
  EXPECT_FALSE(IsMessage(Field(4, Parameter("other", Field(3, "\xff")))));
  EXPECT_FALSE(IsMessage(Field(6, Field(2, Parameter("x", "\xff")))));
}

TEST(InferMessageTest, OfAFloodTheFirstAreKeptAndAllAreCounted) {
  std::string flood;
  for (int i = 0; i < 700'000; ++i) flood.append("\x2a\x00\x32\x00\x3a\x00", 6);
  const InferMessage message = Read(flood, 3);
  EXPECT_EQ(message.num_inputs, 700'000U);
  EXPECT_EQ(message.num_outputs, 700'000U);
  EXPECT_EQ(message.num_raw_contents, 700'000U);
  EXPECT_EQ(message.inputs.size() + message.outputs.size() + message.raw_contents.size(), 9U);
}

TEST(InferMessageTest, WhatAModelCanHaveMustBeKept) {
  std::string bytes;
  for (int i = 0; i < 10; ++i) bytes += Input("x", "FP32", {});
  const Signature signature = SmallSignature();  // at most 14 tensors
  EXPECT_FALSE(IsEnough(Read(bytes, 5), signature));
  EXPECT_TRUE(IsEnough(Read(bytes, 14), signature));
  for (int i = 0; i < 10; ++i) bytes += Input("x", "FP32", {});
  EXPECT_TRUE(IsEnough(Read(bytes, 5), signature));
}

InferParameters Parameters(const std::string& bytes) {
  return ReadParameters(Read(bytes).parameters);
}

TEST(InferParametersTest, DefaultsHoldWhereNothingIsSaid) {
  for (const std::string& bytes :
       {std::string(), Field(4, Parameter("unknown", Number(2, 9))),
        Field(4, Parameter("priority", "")), Field(4, Parameter("sequence_id", Number(2, 0)))}) {
    const InferParameters read = Parameters(bytes);
    EXPECT_EQ(read.priority, 2);
    EXPECT_FALSE(read.timeout_s);
    EXPECT_TRUE(read.context.empty());
  }
}

TEST(InferParametersTest, PriorityTimeoutAndContextAreRead) {
  const std::string bytes = Field(4, Parameter("priority", Number(5, 1))) +
                            Field(4, Parameter("timeout", Number(2, 1'500'000))) +
                            Field(4, Parameter("context", Field(3, "a, b")));
  const InferParameters read = Parameters(bytes);
  EXPECT_EQ(read.priority, 1);
  EXPECT_EQ(read.timeout_s, 1.5);
  EXPECT_EQ(read.context, "a, b");
  EXPECT_EQ(Parameters(Field(4, Parameter("priority", Number(2, 0)))).priority, 2);
  EXPECT_FALSE(Parameters(Field(4, Parameter("timeout", Number(2, 0)))).timeout_s);
}

TEST(InferParametersTest, TheLastOfAKeyAndTheLastOfAChoiceCount) {
  EXPECT_EQ(Parameters(Field(4, Parameter("priority", Number(2, 1))) +
                       Field(4, Parameter("priority", Number(2, 3))))
                .priority,
            3);
  EXPECT_EQ(Parameters(Field(4, Parameter("priority", Field(3, "x") + Number(2, 1)))).priority, 1);
}

TEST(InferParametersTest, WrongOnesAreRefusedByWhatTheyAre) {
  const auto error = [](std::string_view name, const std::string& value) {
    return ErrorOf([&] { Parameters(Field(4, Parameter(name, value))); });
  };
  const std::string expected = ", expected 0 (default) to 3 (served last)";
  EXPECT_EQ(error("priority", Number(2, 4)), "parameters['priority']: got 4" + expected);
  EXPECT_EQ(error("priority", Field(3, "1")), "parameters['priority']: got '1'" + expected);
  EXPECT_EQ(error("priority", Number(1, 1)), "parameters['priority']: got True" + expected);
  EXPECT_EQ(error("priority", Number(2, ~0ULL)), "parameters['priority']: got -1" + expected);
  EXPECT_EQ(error("timeout", Number(5, ~0ULL)),
            "parameters['timeout']: got 18446744073709551615, expected a whole number of "
            "microseconds (0 for none)");
  EXPECT_EQ(error("context", Number(2, 3)),
            "parameters['context']: got 3, expected names of inputs, with commas between them");
  EXPECT_EQ(error("sequence_id", Number(2, 5)),
            "parameters['sequence_id']: got a sequence, expected none: no model here keeps state "
            "between requests");
}

std::string Typed(std::string_view datatype, const std::string& contents, OwnedBytes* owned) {
  const std::string bytes = Input("x", datatype, {}, contents);
  const InferMessage message = Read(bytes);
  return std::string(TypedContents(message.inputs.at(0), owned));
}

TEST(TypedContentsTest, PackedFloatsAreNotCopied) {
  OwnedBytes owned;
  const std::string bytes = Input("x", "FP32", {}, Field(5, Field(6, Floats({1, 2}))));
  const InferMessage message = Read(bytes);
  const std::string_view data = TypedContents(message.inputs.at(0), &owned);
  EXPECT_EQ(data, Floats({1, 2}));
  EXPECT_TRUE(data.data() > bytes.data() && data.data() < bytes.data() + bytes.size());
}

TEST(TypedContentsTest, NumbersMayComeInPiecesPackedAndNot) {
  OwnedBytes owned;
  const std::string one = std::string("\x35") + Floats({3});
  EXPECT_EQ(
      Typed("FP32", Field(5, Field(6, Floats({1, 2})) + one) + Field(5, Field(6, Floats({4}))),
            &owned),
      Floats({1, 2, 3, 4}));
  EXPECT_EQ(Typed("INT64", Field(5, Field(3, "\x01\xac\x02")) + Field(5, Number(3, ~0ULL)), &owned),
            Int64({1, 300, -1}));
  EXPECT_EQ(Typed("INT32", Field(5, Number(2, ~0ULL) + Field(2, "\x07")), &owned), Int32({-1, 7}));
}

TEST(TypedContentsTest, NumbersInTheFieldOfAnotherTypeAreRefused) {
  OwnedBytes owned;
  const std::string contents = Field(5, Number(1, 1) + Field(3, "\x01"));
  EXPECT_EQ(ErrorOf([&] { Typed("INT64", contents, &owned); }),
            "inputs['x'].contents: got bool_contents, int64_contents, expected int64_contents for "
            "INT64");
  EXPECT_EQ(Typed("FP64", contents, &owned), "");
  EXPECT_EQ(Typed("INT64", Field(5, Field(3, "")), &owned), "");
}

TEST(WantedOutputsTest, NamesAreFoundInTheRequestsOrder) {
  const Signature signature = SmallSignature();
  const auto wanted = [&](const std::string& bytes) {
    return WantedOutputs(Read(bytes), signature);
  };
  const std::string score = Field(6, Field(1, "score")), vectors = Field(6, Field(1, "vectors"));
  EXPECT_TRUE(wanted("").empty());
  EXPECT_EQ(wanted(vectors + score), (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(ErrorOf([&] { wanted(score + score); }),
            "outputs: got an output more than once, expected each at most once");
  EXPECT_EQ(ErrorOf([&] { wanted(Field(6, Field(1, "x"))); }),
            "outputs: got an unknown output 'x', expected 'score', 'vectors'");
  EXPECT_EQ(ErrorOf([&] { wanted(score + score + score); }),
            "outputs: got 3, expected at most 2, each once");
  EXPECT_EQ(
      ErrorOf([&] {
        wanted(Field(6, Field(1, "score") + Field(2, Parameter("classification", Number(2, 2)))));
      }),
      "outputs['score'].parameters['classification']: got classification, expected none: this "
      "server has no such");
}

}  // namespace
}  // namespace recsys
