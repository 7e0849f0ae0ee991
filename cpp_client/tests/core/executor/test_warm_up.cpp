// Warm-up batches: made ones, and those of captured requests.

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/core/executor/warm_up.h"
#include "recsys/batch_writer.h"
#include "recsys/error.h"
#include "tests/core/fakes.h"
#include "wire/predict_messages.h"

namespace recsys {
namespace {

Signature LargeSignature(std::vector<std::string> context) {
  Signature signature = SumSignature();
  signature.dense.push_back({"wide", 13});
  signature.sparse.push_back({"small", {{"few", 3, IdPolicy::kReject}}, "mean", true});
  signature.sparse.push_back({"hashed", {{"any", 50, IdPolicy::kHash}}, "sum", false});
  signature.context = std::move(context);
  return signature;
}

using Shape = std::pair<std::size_t, std::int64_t>;

Shape ShapeOf(const WarmUpBatch& batch) {
  std::int64_t num_rows = 0;
  for (const OwnedRequest& request : batch) num_rows += request.checked.num_rows;
  return {batch.size(), num_rows};
}

std::vector<Shape> ShapesOf(const std::vector<WarmUpBatch>& batches) {
  std::vector<Shape> shapes;
  for (const WarmUpBatch& batch : batches) shapes.push_back(ShapeOf(batch));
  return shapes;
}

/// Puts each together as executors do, and sees that its IDs are in their tables.
void ExpectUsable(const Signature& signature, const std::vector<WarmUpBatch>& batches) {
  BatchWriter writer(signature);
  for (const WarmUpBatch& requests : batches) {
    std::vector<const CheckedRequest*> checked;
    for (const OwnedRequest& request : requests) checked.push_back(&request.checked);
    const Batch& batch = writer.Write(checked);
    for (const SparseBatch& sparse : {batch.sparse, batch.context}) {
      std::int64_t sum = 0;
      for (const std::int64_t length : sparse.lengths) sum += length;
      EXPECT_EQ(static_cast<std::size_t>(sum), sparse.values.size());
      EXPECT_TRUE(sum == 0 || sparse.weights.size() == sparse.values.size());
    }
    for (const CheckedRequest* request : checked) {
      std::size_t own = 0, shared = 0;
      for (const SparseInput& input : signature.sparse) {
        const bool is_shared = request->has_context && signature.InContext(input.name);
        const SparseView& view =
            is_shared ? request->context.at(shared++) : request->sparse.at(own++);
        EXPECT_EQ(view.num_ids, (is_shared ? 1 : request->num_rows) * input.num_ids.value_or(1));
        for (std::int64_t i = 0; i < view.num_ids; ++i) {
          std::int64_t id = -1;
          std::memcpy(&id, view.values + 8 * i, sizeof(id));
          EXPECT_GE(id, 0);
          EXPECT_LT(id, input.id_limit().value_or(1));
        }
      }
    }
  }
}

/// Returns the batches that exports try a model on: requests and rows of all of them.
std::vector<Shape> SizesOfPython() {
  std::ifstream file(std::string(RECSYS_TEST_CASES) + "/warm_up_sizes.txt");
  std::vector<Shape> found;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::size_t num_requests = 0;
    std::int64_t num_rows = 0;
    if (words >> num_requests >> num_rows) {
      found.emplace_back(num_requests, static_cast<std::int64_t>(num_requests) * num_rows);
    }
  }
  return found;
}

/// Three rows whose bags and numbers differ, of LargeSignature.
VerifiedRows ThreeRows() {
  VerifiedRows rows;
  rows.num_rows = 3;
  for (const DenseInput& input : LargeSignature({}).dense) {
    std::vector<float> numbers;
    for (std::int64_t row = 0; row < 3; ++row) {
      numbers.insert(numbers.end(), static_cast<std::size_t>(input.width),
                     static_cast<float>(row + 1));
    }
    rows.dense.push_back(std::move(numbers));
  }
  rows.lengths = {1, 0, 2, 2, 1, 0, 0, 1, 1};
  rows.values = {10, 30, 31, 1, 2, 0, 7, 49};
  rows.weights = {1, 2, 3, 4, 5, 6, 7, 8};
  return rows;
}

std::vector<std::int64_t> IdsOf(const SparseView& view) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(view.num_ids));
  if (!ids.empty()) std::memcpy(ids.data(), view.values, 8 * ids.size());
  return ids;
}

TEST(WarmUpBatches, AreOfSeveralSizesEachTwice) {
  const auto shapes = ShapesOf(WarmUpBatches(LargeSignature({}), {}));
  const std::vector<Shape> once = SizesOfPython();
  ASSERT_EQ(shapes.size(), 2 * once.size());
  for (std::size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(shapes[i], once[i / 2]);
}

TEST(WarmUpBatches, AreForRankingTooWhereThereIsAContext) {
  const auto batches = WarmUpBatches(LargeSignature({"id"}), {});
  const std::size_t half = batches.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    EXPECT_FALSE(batches[i][0].checked.has_context);
    EXPECT_TRUE(batches[half + i][0].checked.has_context);
    EXPECT_EQ(ShapeOf(batches[i]), ShapeOf(batches[half + i]));
  }
}

TEST(WarmUpBatches, HoldAsManyIdsAsTheModelTakes) {
  Signature signature = LargeSignature({"small"});
  signature.sparse[0].num_ids = 3;
  signature.sparse[1].num_ids = 20;
  signature.sparse[2].num_ids = 0;
  ExpectUsable(signature, WarmUpBatches(signature, {}));
}

TEST(WarmUpBatches, AreOfOneRequestWithTwoRowsWhereABatchIsOne) {
  Signature signature = LargeSignature({"id"});
  signature.by_request = true;
  const auto batches = WarmUpBatches(signature, {});
  EXPECT_EQ(ShapesOf(batches), (std::vector<Shape>(4, {1, 2})));
  ExpectUsable(signature, batches);
}

TEST(WarmUpBatches, PassEveryCheckOnIds) {
  using Context = std::vector<std::string>;
  for (const Context& context :
       {Context{}, Context{"id"}, Context{"wide", "small"}, Context{"id", "small", "hashed"}}) {
    const Signature signature = LargeSignature(context);
    ExpectUsable(signature, WarmUpBatches(signature, {}));
  }
}

TEST(WarmUpBatches, ReachBothEndsOfATable) {
  const auto batches = WarmUpBatches(SumSignature(), {});
  const SparseView& view = batches[10][0].checked.sparse.at(0);
  ASSERT_EQ(view.num_ids, 64);
  std::int64_t first = -1, last = -1;
  std::memcpy(&first, view.values, 8);
  std::memcpy(&last, view.values + 8 * 63, 8);
  EXPECT_EQ(first, 0);
  EXPECT_EQ(last, 999'999);
}

TEST(WarmUpBatches, AreNoLargerThanTheLimitsExceptThatOfOneRow) {
  const Signature signature = LargeSignature({"id"});
  BatchLimits by_rows;
  by_rows.max_batch_rows = 8;
  std::int64_t most = 0;
  for (const auto& batch : WarmUpBatches(signature, by_rows)) {
    most = std::max(most, ShapeOf(batch).second);
  }
  EXPECT_EQ(most, 8);
  BatchLimits smallest;
  smallest.max_batch_ids = 1;
  EXPECT_EQ(ShapesOf(WarmUpBatches(signature, smallest)), (std::vector<Shape>(4, {1, 1})));
}

TEST(WarmUpBatches, AreOfVerifiedRowsInTurnWhereThereAreAny) {
  const Signature signature = LargeSignature({"id", "wide"});
  const auto batches = WarmUpBatches(signature, {}, ThreeRows());
  ASSERT_EQ(ShapesOf(batches), ShapesOf(WarmUpBatches(signature, {})));
  const WarmUpBatch& many = batches[6];
  ASSERT_EQ(many.size(), 8U);
  for (std::size_t i = 0; i < many.size(); ++i) {
    float first = 0;
    std::memcpy(&first, many[i].checked.dense.back().values, sizeof(first));
    EXPECT_EQ(first, static_cast<float>(i % 3 + 1));
  }
  EXPECT_EQ(IdsOf(many[0].checked.sparse.at(0)), (std::vector<std::int64_t>{10}));
  EXPECT_EQ(IdsOf(many[1].checked.sparse.at(0)), (std::vector<std::int64_t>{}));
  EXPECT_EQ(IdsOf(many[5].checked.sparse.at(0)), (std::vector<std::int64_t>{30, 31}));
  EXPECT_EQ(IdsOf(many[3].checked.sparse.at(1)), (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(IdsOf(many[4].checked.sparse.at(2)), (std::vector<std::int64_t>{7}));
  // For ranking, the context is that of the first row.
  const CheckedRequest& ranking = batches[14 + 10].at(0).checked;
  ASSERT_TRUE(ranking.has_context);
  EXPECT_EQ(IdsOf(ranking.context.at(0)), (std::vector<std::int64_t>{10}));
  EXPECT_EQ(ranking.num_rows, 64);
  BatchWriter writer(signature);
  for (const WarmUpBatch& requests : batches) {
    std::vector<const CheckedRequest*> checked;
    for (const OwnedRequest& request : requests) checked.push_back(&request.checked);
    const Batch& batch = writer.Write(checked);
    EXPECT_EQ(batch.sparse.weights.size(), batch.sparse.values.size());
  }
}

TEST(WarmUpBatches, OfVerifiedRowsKeepWithinTheLimits) {
  BatchLimits limits;
  limits.max_batch_ids = 12;
  for (const auto& batch : WarmUpBatches(LargeSignature({}), limits, ThreeRows())) {
    std::int64_t num_ids = 0;
    for (const OwnedRequest& request : batch) num_ids += request.checked.num_ids;
    EXPECT_LE(num_ids, 12);
  }
}

class CapturedTest : public testing::Test {
 protected:
  CapturedTest() : checker_(SumSignature(true), {8, 1000, 1'000'000}) {}

  void Add(std::size_t num_rows, bool has_context = false) {
    const SumRequest::Ids ids(num_rows, {1, 2});
    SumRequest request(answers_, "a", ids, has_context);
    request.Read(*opened_.servable);
    messages_.push_back(WritePredictRequest(request.raw));
  }
  std::vector<WarmUpBatch> Batches(const BatchLimits& limits = {}) {
    std::vector<WarmUpBatch> batches;
    AddCapturedBatches(messages_, checker_, limits, &batches);
    return batches;
  }

  Answers answers_;
  Opened opened_ = HostSum([](Request&, const Status&, Message) {});
  const RequestChecker checker_;
  std::vector<std::string> messages_;
};

TEST_F(CapturedTest, AreOfOneAndOfManyRequestsAndByKind) {
  const HeardLog log;
  for (int i = 0; i < 80; ++i) {
    Add(1);
    Add(2, true);
  }
  const auto batches = Batches();
  std::vector<std::size_t> sizes;
  for (const auto& batch : batches) sizes.push_back(batch.size());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{1, 8, 64, 1, 6, 1, 8, 64, 1, 6}));
  for (std::size_t i = 0; i < batches.size(); ++i) {
    for (const auto& request : batches[i]) EXPECT_EQ(request.checked.has_context, i >= 5);
  }
  BatchWriter writer(SumSignature(true));
  for (const auto& requests : batches) {
    std::vector<const CheckedRequest*> checked;
    for (const auto& request : requests) checked.push_back(&request.checked);
    for (const float sum : SumsOf(writer.Write(checked))) EXPECT_GE(sum, 3);
  }
  EXPECT_NE(log.text().find("160 captured requests are used, 0 do not fit the model"),
            std::string::npos);
}

TEST_F(CapturedTest, RequestsThatDoNotFitAreLeftOutAndCounted) {
  const HeardLog log;
  Add(9);
  Add(2);
  messages_.emplace_back();
  messages_.emplace_back("\xff\xff");
  Add(3);
  EXPECT_EQ(ShapesOf(Batches()), (std::vector<Shape>{{1, 2}, {1, 3}}));
  EXPECT_NE(log.text().find("2 captured requests are used, 3 do not fit the model"),
            std::string::npos);
}

TEST_F(CapturedTest, KeepWithinTheLimitsOfABatch) {
  for (int i = 0; i < 60; ++i) Add(1 + i % 3);
  BatchLimits limits;
  limits.max_batch_rows = 5;
  std::size_t num_requests = 0;
  for (const auto& [size, num_rows] : ShapesOf(Batches(limits))) {
    EXPECT_LE(num_rows, 5);
    num_requests += size;
  }
  EXPECT_EQ(num_requests, 60U);
  limits.max_batch_ids = 1;
  for (const auto& [size, num_rows] : ShapesOf(Batches(limits))) EXPECT_EQ(size, 1U);
}

TEST_F(CapturedTest, ALongCaptureIsNotUsedWhole) {
  for (int i = 0; i < 2010; ++i) Add(1);
  std::size_t num_requests = 0;
  for (const auto& batch : Batches()) num_requests += batch.size();
  EXPECT_EQ(num_requests, 2000U);
}

TEST_F(CapturedTest, AVersionIsWarmedUpWithItsRequests) {
  for (int i = 0; i < 3; ++i) Add(7);
  opened_ = HostSum([](Request&, const Status&, Message) {}, {}, "2", true);
  std::multiset<std::int64_t> sizes;
  opened_.model->on_predict = [&](const Batch& batch) { sizes.insert(batch.num_rows); };
  opened_.servable->Open(messages_);
  opened_.servable->Close();
  EXPECT_EQ(sizes.count(7), 1U);
  EXPECT_EQ(sizes.count(14), 1U);
}

}  // namespace
}  // namespace recsys
