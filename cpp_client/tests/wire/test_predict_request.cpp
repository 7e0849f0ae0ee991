#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "tests/wire/messages.h"
#include "wire/predict_messages.h"

namespace recsys {
namespace {

/// What was read, and what it points into.
struct Reading {
  std::string message;
  bool ok = false;
  PredictFields fields;
  RawRequest raw;
};

std::unique_ptr<Reading> ReadOf(std::string message, std::size_t max_inputs = kMaxInputsKept) {
  auto reading = std::make_unique<Reading>();
  reading->message = std::move(message);
  reading->ok = ReadPredictRequest(reading->message, max_inputs, &reading->fields, &reading->raw);
  return reading;
}

const std::string& Whole() {
  static const std::string whole =
      Field(1, "m") + Field(2, "r") + Number(3, 2) +
      Field(4, Field(1, "price") + Field(2, Floats({1, 2}))) +
      Field(5, Field(1, "user") + Field(2, Int32({1, 0})) + Field(3, Int64({7}))) +
      Field(5, Field(1, "tags") + Field(4, Floats({3}))) +
      Field(6, Field(1, "context") + Field(2, Floats({5}))) +
      Field(7, Field(1, "item") + Field(3, Int64({-1}))) + Field(8, "v") + Number(9, 3);
  return whole;
}

TEST(PredictRequestTest, EveryFieldIsReadInPlace) {
  const auto read = ReadOf(Whole());
  ASSERT_TRUE(read->ok);
  EXPECT_EQ(read->fields.model, "m");
  EXPECT_EQ(read->fields.request_id, "r");
  EXPECT_EQ(read->fields.version, "v");
  EXPECT_EQ(read->fields.priority, 3);
  EXPECT_FALSE(read->fields.is_cut);
  EXPECT_EQ(read->raw.num_rows, 2);
  ASSERT_EQ(read->raw.dense.size(), 1U);
  EXPECT_EQ(read->raw.dense[0].name, "price");
  EXPECT_EQ(read->raw.dense[0].values, Floats({1, 2}));
  ASSERT_EQ(read->raw.sparse.size(), 2U);
  EXPECT_EQ(read->raw.sparse[0].lengths, Int32({1, 0}));
  EXPECT_EQ(read->raw.sparse[0].values, Int64({7}));
  EXPECT_EQ(read->raw.sparse[1].name, "tags");
  EXPECT_EQ(read->raw.sparse[1].weights, Floats({3}));
  EXPECT_EQ(read->raw.context_dense.at(0).name, "context");
  EXPECT_EQ(read->raw.context_sparse.at(0).values, Int64({-1}));
  const char* at = read->raw.sparse[0].values.data();
  const char* start = read->message.data();
  EXPECT_TRUE(at > start && at < start + read->message.size());
}

TEST(PredictRequestTest, NoBytesAreAnEmptyRequest) {
  const auto read = ReadOf("");
  EXPECT_TRUE(read->ok);
  EXPECT_EQ(read->raw.num_rows, 0);
  EXPECT_TRUE(read->raw.dense.empty());
}

TEST(PredictRequestTest, OfAFieldThatComesTwiceTheLaterCounts) {
  const auto read =
      ReadOf(Number(3, 1) + Field(1, "a") + Field(1, "b") + Number(3, 7) +
             Field(5, Field(1, "x") + Field(3, "old") + Field(1, "y") + Field(3, "new")));
  EXPECT_EQ(read->fields.model, "b");
  EXPECT_EQ(read->raw.num_rows, 7);
  EXPECT_EQ(read->raw.sparse.at(0).name, "y");
  EXPECT_EQ(read->raw.sparse.at(0).values, "new");
}

TEST(PredictRequestTest, NumbersOfMoreThan32BitsAreCutAsProtobufCutsThem) {
  EXPECT_EQ(ReadOf(Number(3, ~0ULL))->raw.num_rows, -1);
  EXPECT_EQ(ReadOf(Number(3, (1ULL << 32) + 5))->raw.num_rows, 5);
  EXPECT_EQ(ReadOf(Number(9, 1ULL << 31))->fields.priority, -2147483648);
}

TEST(PredictRequestTest, UnknownFieldsAndOtherWireTypesArePassedOver) {
  const auto read = ReadOf(Number(4, 5) + Field(3, "text") + Field(100, "new") +
                           Field(5, Number(1, 2) + Field(9, "z") + Field(1, "user")));
  ASSERT_TRUE(read->ok);
  EXPECT_EQ(read->raw.num_rows, 0);
  EXPECT_TRUE(read->raw.dense.empty());
  EXPECT_EQ(read->raw.sparse.at(0).name, "user");
}

TEST(PredictRequestTest, ANameThatIsNoUtf8IsNoMessage) {
  EXPECT_FALSE(ReadOf(Field(1, "\xff\xfe"))->ok);
  EXPECT_FALSE(ReadOf(Field(4, Field(1, "\xff")))->ok);
  EXPECT_FALSE(ReadOf(Field(7, Field(1, "\xff")))->ok);
  EXPECT_TRUE(ReadOf(Field(4, Field(2, "\xff")))->ok);
}

TEST(PredictRequestTest, AMessageThatIsCutOffAnywhereInAFieldIsNone) {
  std::size_t num_whole = 0;
  for (std::size_t size = 0; size < Whole().size(); ++size) {
    num_whole += ReadOf(std::string(Whole(), 0, size))->ok ? 1 : 0;
  }
  EXPECT_EQ(num_whole, 10U);  // between its eleven fields
}

TEST(PredictRequestTest, OfAFloodOfInputsOnlyTheFirstAreKept) {
  constexpr int kNumInputs = 2 << 20;
  std::string flood;
  for (int i = 0; i < kNumInputs; ++i) flood.append("\x22\x00", 2);
  const auto read = ReadOf(flood, 5);
  ASSERT_TRUE(read->ok);
  EXPECT_EQ(read->raw.dense.size(), 5U);
  EXPECT_LE(read->raw.dense.capacity(), 8U);
  EXPECT_TRUE(read->fields.is_cut);
  EXPECT_FALSE(ReadOf(flood + "\xff", 5)->ok);
}

TEST(PredictRequestTest, MemoryIsUsedAgainAndHoldsNothingOfTheRequestBefore) {
  PredictFields fields;
  RawRequest raw;
  ASSERT_TRUE(ReadPredictRequest(Whole(), kMaxInputsKept, &fields, &raw));
  const RawSparse* memory = raw.sparse.data();
  ASSERT_TRUE(ReadPredictRequest(Field(5, ""), kMaxInputsKept, &fields, &raw));
  EXPECT_EQ(raw.sparse.data(), memory);
  EXPECT_EQ(raw.sparse.size(), 1U);
  EXPECT_TRUE(raw.sparse[0].name.empty() && raw.sparse[0].weights.empty());
  EXPECT_TRUE(raw.dense.empty() && raw.context_dense.empty() && raw.context_sparse.empty());
  EXPECT_TRUE(fields.model.empty());
  EXPECT_EQ(raw.num_rows, 0);
}

TEST(PredictRequestTest, WhatIsWrittenReadsBack) {
  PredictFields fields;
  RawRequest raw, again;
  ASSERT_TRUE(ReadPredictRequest(Whole(), kMaxInputsKept, &fields, &raw));
  const std::string written = WritePredictRequest(raw);
  ASSERT_TRUE(ReadPredictRequest(written, kMaxInputsKept, &fields, &again));
  EXPECT_EQ(again.num_rows, raw.num_rows);
  EXPECT_EQ(again.dense.size(), raw.dense.size());
  EXPECT_EQ(again.sparse.size(), raw.sparse.size());
  EXPECT_EQ(again.context_dense.size(), raw.context_dense.size());
  EXPECT_EQ(again.context_sparse.size(), raw.context_sparse.size());
  EXPECT_EQ(NumBytesOf(again), NumBytesOf(raw));
  EXPECT_EQ(WritePredictRequest(again), written);
  EXPECT_EQ(WritePredictRequest({}), "");
}

TEST(PredictRequestTest, TextsAreTakenFromWhereTheyLie) {
  const std::vector<std::string> texts{"ab", "", "\xff", std::string(300, 'x')};
  const auto read =
      ReadOf(Field(5, Field(5, texts[0]) + Field(1, "user") + Field(2, Int32({4})) + Number(5, 7) +
                          Field(5, texts[1]) + Field(9, "z") + Field(5, texts[2]) +
                          Field(4, Floats({1})) + Field(5, texts[3])) +
             Field(7, Field(1, "item") + Field(5, "once")));
  ASSERT_TRUE(read->ok);
  const RawSparse& user = read->raw.sparse.at(0);
  EXPECT_EQ(user.texts.num_texts, 4);
  EXPECT_EQ(TextsOf(user), texts);
  EXPECT_EQ(TextsOf(user), texts) << "they can be read again";
  EXPECT_TRUE(user.values.empty());
  EXPECT_EQ(TextsOf(read->raw.context_sparse.at(0)), (std::vector<std::string>{"once"}));
  EXPECT_EQ(NumBytesOf(read->raw), 4U + 4 + 303 + 4);
  const auto again = ReadOf(WritePredictRequest(read->raw));
  ASSERT_TRUE(again->ok);
  EXPECT_EQ(TextsOf(again->raw.sparse.at(0)), texts);
  EXPECT_EQ(again->raw.sparse[0].weights, Floats({1}));
  EXPECT_EQ(TextsOf(again->raw.context_sparse.at(0)), (std::vector<std::string>{"once"}));
}

TEST(PredictRequestTest, TextsThatAreCutOffAreNoMessage) {
  const std::string whole = Field(5, Field(1, "user") + Field(5, "ab"));
  EXPECT_TRUE(ReadOf(whole)->ok);
  EXPECT_FALSE(ReadOf(Field(5, std::string("\x2a\x03") + "ab"))->ok);
}

}  // namespace
}  // namespace recsys
