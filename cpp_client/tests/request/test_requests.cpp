#include <gtest/gtest.h>

#include <cstring>
#include <new>

#include "recsys/batch_writer.h"
#include "recsys/error.h"
#include "tests/request/table.h"

namespace recsys {
namespace {

std::string TestName(std::string name) {
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

void ExpectBatch(const Batch& batch, const Json& expected, bool is_weighted) {
  EXPECT_EQ(batch.is_ranking, expected["is_ranking"].get<bool>());
  const std::vector<std::string> found = ArgumentsOf(batch, is_weighted);
  ASSERT_EQ(found.size(), expected["inputs"].size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(found[i], BytesOf(expected["inputs"][i])) << i;
}

class EachRequest : public testing::TestWithParam<std::size_t> {};

TEST_P(EachRequest, HasTheOutcomeThatPythonGivesIt) {
  const Json& item = Table::Get().cases()[GetParam()];
  const TableRequest request(item["request"]);
  const RequestChecker checker = Table::Get().CheckerOf(item);
  CheckedRequest checked;
  if (item.contains("error")) {
    try {
      checker.Check(request.raw(), &checked);
      FAIL() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.substr(0, text.find(": ")), item["field"].get<std::string>()) << text;
      const bool is_large = item["error"] == "RequestTooLargeError";
      EXPECT_EQ(error.kind(), is_large ? ErrorKind::kRequestTooLarge : ErrorKind::kRequest);
    }
    return;
  }
  checker.Check(request.raw(), &checked);
  EXPECT_EQ(checked.num_ids, item["num_ids"].get<std::int64_t>());
  EXPECT_EQ(checked.spread_bytes, item["spread_bytes"].get<std::int64_t>());
  for (const auto& [name, id] : item["first_ids"].items()) {
    const std::optional<std::int64_t> first = checker.FirstId(checked, name);
    EXPECT_EQ(first.has_value(), !id.is_null()) << name;
    if (first) {
      EXPECT_EQ(*first, id.get<std::int64_t>()) << name;
    }
  }
  EXPECT_EQ(checker.FirstId(checked, "no such input"), std::nullopt);
  BatchWriter writer(checker.signature());
  const CheckedRequest* const one = &checked;
  ExpectBatch(writer.Write({&one, 1}), item["batch"], checker.signature().is_weighted());
}

INSTANTIATE_TEST_SUITE_P(Table, EachRequest,
                         testing::Range<std::size_t>(0, Table::Get().cases().size()),
                         [](const auto& place) {
                           const Json& item = Table::Get().cases()[place.param];
                           return TestName(item["name"].get<std::string>());
                         });

class EachBatch : public testing::TestWithParam<std::size_t> {};

TEST_P(EachBatch, IsPutTogetherAsPythonDoes) {
  const Json& item = Table::Get().batches()[GetParam()];
  const RequestChecker checker = Table::Get().CheckerOf(item);
  std::vector<std::unique_ptr<TableRequest>> requests;
  std::vector<CheckedRequest> checked(item["requests"].size());
  std::vector<const CheckedRequest*> pointers;
  for (std::size_t i = 0; i < checked.size(); ++i) {
    requests.push_back(std::make_unique<TableRequest>(item["requests"][i]));
    checker.Check(requests[i]->raw(), &checked[i]);
    pointers.push_back(&checked[i]);
  }
  BatchWriter writer(checker.signature());
  // Larger before, so that memory which is used again must not show.
  std::vector<const CheckedRequest*> twice(pointers);
  twice.insert(twice.end(), pointers.begin(), pointers.end());
  writer.Write({twice.data(), twice.size()});
  ExpectBatch(writer.Write({pointers.data(), pointers.size()}), item["batch"],
              checker.signature().is_weighted());
}

INSTANTIATE_TEST_SUITE_P(Table, EachBatch,
                         testing::Range<std::size_t>(0, Table::Get().batches().size()),
                         [](const auto& place) {
                           const Json& item = Table::Get().batches()[place.param];
                           return TestName(item["name"].get<std::string>());
                         });

TEST(CheckedRequestMemory, IsUsedAgainWhateverItHeld) {
  CheckedRequest checked;
  for (int round = 0; round < 2; ++round) {
    for (const char* name : {"good", "context-ranking", "wide", "texts-of-several",
                             "good-in-another-order", "texts-context-right", "context-plain"}) {
      const Json& item = Table::Get().Case(name);
      const TableRequest request(item["request"]);
      const RequestChecker checker = Table::Get().CheckerOf(item);
      checker.Check(request.raw(), &checked);
      BatchWriter writer(checker.signature());
      const CheckedRequest* const one = &checked;
      ExpectBatch(writer.Write({&one, 1}), item["batch"], checker.signature().is_weighted());
    }
  }
}

TEST(CheckedRequestMemory, CopiesShareTheIdsOfTexts) {
  const Json& item = Table::Get().Case("texts-context-right");
  const RequestChecker checker = Table::Get().CheckerOf(item);
  CheckedRequest copy;
  {
    const TableRequest request(item["request"]);
    CheckedRequest checked;
    checker.Check(request.raw(), &checked);
    ASSERT_EQ(checked.ids_of_texts.size(), 2U) << "of the context, and of the rows";
    copy = checked;
    const Json& good = Table::Get().Case("good");
    const TableRequest other(good["request"]);
    checker.Check(other.raw(), &checked);
    EXPECT_TRUE(checked.ids_of_texts.empty());
  }
  ASSERT_EQ(copy.context.size(), 1U);
  std::int64_t first = 0;
  std::memcpy(&first, copy.context[0].values, sizeof first);
  EXPECT_EQ(first, 0xd24ec4f1a98c6e5b & INT64_MAX) << "the ID of a";
}

TEST(RequestCheckerTest, NothingOverflowsWhereWidthsAndLimitsAreAsLargeAsCanBe) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  Signature signature;
  signature.dense = {{"a", kMost}, {"b", kMost}};
  signature.outputs = {{"score", {}}};
  const RequestChecker checker(signature, {kMost, kMost, kMost});
  RawRequest request;
  request.num_rows = std::int64_t{1} << 47;
  request.dense = {{"a", ""}, {"b", ""}};
  CheckedRequest checked;
  try {
    checker.Check(request, &checked);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "dense['a'].values: got 0 bytes, expected 5192296858534827627967546375798784 (float32 "
        "[140737488355328, 9223372036854775807])");
  }
  request.num_rows = kMost;
  EXPECT_THROW(checker.Check(request, &checked), Error);
}

}  // namespace
}  // namespace recsys
