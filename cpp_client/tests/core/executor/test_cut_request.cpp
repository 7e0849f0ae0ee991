// Large requests whose rows several executors compute.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/cut_request.h"
#include "executor_test.h"
#include "recsys/batch_writer.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::int64_t kBadId = 999'983;

SumRequest::Ids SomeIds(int num_rows) {
  SumRequest::Ids ids;
  for (int row = 0; row < num_rows; ++row) {
    ids.emplace_back();
    for (int i = 0; i < (row * 7) % 5; ++i) ids.back().push_back(row + 1000 * i);
  }
  return ids;
}

class CutRequestTest : public ExecutorTest {
 protected:
  /// Rows take so long that a few hundred are worth another executor, whatever else runs here.
  void OpenSlow(bool has_context = false, bool shares_contexts = false) {
    VersionSettings settings;
    settings.num_executors = 3;
    opened_ = HostSum(DeliverAtOnce, settings, "1", has_context);
    opened_.model->on_predict = [this](const Batch& batch) { OnPredict(batch); };
    if (shares_contexts) opened_.model->on_context = [this] { ++num_contexts_; };
    opened_.servable->Open();
    // The policy relies on costs of a few batches.
    for (int i = 0; i < 8; ++i) {
      const std::string name = "first " + std::to_string(num_asked_);
      const auto request = Make(name, SomeIds(1 + 25 * (i % 2)), has_context);
      opened_.servable->executor().Submit(request);
      answers_.Wait(++num_asked_);
    }
  }
  void OnPredict(const Batch& batch) {
    ++num_running_;
    std::this_thread::sleep_for(std::chrono::microseconds(50 * batch.num_rows));
    for (const std::int64_t id : batch.sparse.values) {
      if (id != kBadId) continue;
      --num_running_;
      throw Error(ErrorKind::kRequest, "a bad ID");
    }
    --num_running_;
  }
  /// Asks until a request was cut, which a busy machine may delay; returns the last one.
  std::shared_ptr<SumRequest> AskUntilCut(const SumRequest::Ids& ids, bool has_context = false) {
    std::shared_ptr<SumRequest> request;
    const std::int64_t num_cut = NumCut();
    for (int i = 0; i < 200 && NumCut() == num_cut; ++i) {
      request = Make("request " + std::to_string(num_asked_), ids, has_context);
      opened_.servable->executor().Submit(request);
      answers_.Wait(++num_asked_);
    }
    EXPECT_GT(NumCut(), num_cut);
    return request;
  }
  std::int64_t NumCut() const { return opened_.servable->Totals().cut_requests; }

  std::atomic<int> num_running_{0};
  /// Those computed for parts that share them.
  std::atomic<int> num_contexts_{0};
  int num_asked_ = 0;
};

TEST_F(CutRequestTest, PartsHaveTheRowsOfTheWhole) {
  for (const bool has_context : {false, true}) {
    Open({}, has_context);
    const Signature& signature = opened_.servable->signature();
    for (const int num_rows : {2, 3, 7, 64, 1000}) {
      const auto request = Make("r", SomeIds(num_rows), has_context);
      for (int num_parts = 2; num_parts <= std::min(num_rows, 7); ++num_parts) {
        CutRequest cut(request->checked, signature, num_parts);
        std::int64_t num_ids = 0;
        std::vector<std::vector<float>> sums;
        while (CutRequest::Part* const part = cut.Claim()) {
          BatchWriter writer(signature);
          const CheckedRequest* const checked = &part->checked;
          sums.push_back(SumsOf(writer.Write({&checked, 1})));
          num_ids += part->checked.num_ids;
          part->outputs.values.emplace_back(sums.back().data(), sums.back().size());
          cut.Done(part);
        }
        EXPECT_FALSE(cut.has_unclaimed());
        cut.WaitUntilDone();
        const Outputs joined = cut.Joined();
        EXPECT_EQ(std::vector<float>(joined.values[0].begin(), joined.values[0].end()),
                  request->expected());
        // Each part has the context.
        EXPECT_GE(num_ids, request->checked.num_ids);
      }
    }
    opened_.servable->Close();
  }
}

/// Parts of a request that share its context, in a test's own thread.
class SharingTest : public CutRequestTest {
 protected:
  void SetUp() override {
    Open({}, true);
    request_ = Make("r", SomeIds(9), true);
    cut_.emplace(request_->checked, opened_.servable->signature(), 3);
    cut_->ShareContext([this] { ++num_freed_; });
    first_ = cut_->Claim();
    EXPECT_FALSE(cut_->has_unclaimed());
    EXPECT_EQ(cut_->Claim(), nullptr);
    EXPECT_EQ(num_freed_, 0);
  }

  std::shared_ptr<SumRequest> request_;
  std::optional<CutRequest> cut_;
  int num_freed_ = 0;
  CutRequest::Part* first_ = nullptr;
};

TEST_F(SharingTest, PartsAreHeldBackUntilTheirContextIsComputed) {
  const SharedContext::Values values(new float[1]{3});
  EXPECT_EQ(cut_->shared()->Find(), nullptr);
  cut_->shared()->Add(values);
  EXPECT_EQ(num_freed_, 1);
  EXPECT_TRUE(cut_->has_unclaimed());
  EXPECT_TRUE(cut_->Claim()->has_context_values);
  EXPECT_FALSE(first_->has_context_values);
  EXPECT_EQ(cut_->shared()->Find(), values);
  cut_->Done(first_);
  EXPECT_EQ(num_freed_, 1);
}

TEST_F(SharingTest, PartsComputeAContextThatTheFirstHasNotAdded) {
  cut_->Done(first_);
  EXPECT_EQ(num_freed_, 1);
  EXPECT_FALSE(cut_->Claim()->has_context_values);
  EXPECT_EQ(cut_->shared()->Find(), nullptr);
  cut_->shared()->Add(SharedContext::Values(new float[1]{3}));
  EXPECT_EQ(num_freed_, 1);
}

TEST_F(SharingTest, PartsAreNotComputedAfterTheFirstHasFailed) {
  first_->failure = std::make_exception_ptr(Error(ErrorKind::kRequest, "a bad ID"));
  cut_->Done(first_);
  EXPECT_EQ(num_freed_, 0);
  EXPECT_FALSE(cut_->has_unclaimed());
  EXPECT_EQ(cut_->Claim(), nullptr);
  cut_->WaitUntilDone();
  EXPECT_THROW(cut_->Joined(), Error);
}

TEST_F(CutRequestTest, PartsComputeTheirContextOnce) {
  OpenSlow(true, true);
  for (const int num_rows : {300, 301, 512, 1000}) {
    ExpectAnswered(*AskUntilCut(SomeIds(num_rows), true));
  }
  EXPECT_EQ(num_contexts_, NumCut());
}

TEST_F(CutRequestTest, AnErrorInASharedContextIsTheRequests) {
  OpenSlow(true, true);
  opened_.model->on_context = [] { throw Error(ErrorKind::kRequest, "a bad context"); };
  const auto request = AskUntilCut(SomeIds(1000), true);
  EXPECT_EQ(answers_.Of(request->request_id).status.text, "a bad context");
  opened_.model->on_context = [] {};
  ExpectAnswered(*AskUntilCut(SomeIds(1000), true));
}

TEST_F(CutRequestTest, AnswersAreThoseOfTheWholeAndCountAsOneBatch) {
  for (const bool has_context : {false, true}) {
    OpenSlow(has_context);
    const VersionTotals before = opened_.servable->Totals();
    const int num_before = num_asked_;
    for (const int num_rows : {300, 301, 512, 1000}) {
      ExpectAnswered(*AskUntilCut(SomeIds(num_rows), has_context));
    }
    const VersionTotals totals = opened_.servable->Totals();
    EXPECT_GE(totals.cut_requests, 4);
    EXPECT_EQ(totals.batch_requests.count() - before.batch_requests.count(),
              num_asked_ - num_before);
    EXPECT_EQ(totals.batch_requests.sum() - before.batch_requests.sum(), num_asked_ - num_before);
    opened_.servable->Close();
  }
}

TEST_F(CutRequestTest, AnErrorInOnePartIsTheRequests) {
  OpenSlow();
  for (const std::size_t bad_row : {0U, 700U, 999U}) {
    SumRequest::Ids ids = SomeIds(1000);
    ids[bad_row].push_back(kBadId);
    const auto request = AskUntilCut(ids);
    const Answers::Answer answer = answers_.Of(request->request_id);
    EXPECT_EQ(answer.status.code, StatusCode::kInvalidArgument);
    EXPECT_EQ(answer.status.text, "a bad ID");
  }
  ExpectAnswered(*AskUntilCut(SomeIds(1000)));
}

TEST_F(CutRequestTest, ACancelledRequestIsComputedToItsEndAndNotAnswered) {
  OpenSlow();
  AskUntilCut(SomeIds(1000));
  const int num_answered = answers_.num_done();
  const auto request = Make("cancelled", SomeIds(1000));
  opened_.servable->executor().Submit(request);
  while (num_running_ == 0 && answers_.num_done() == num_answered) std::this_thread::yield();
  const bool was_first = !request->is_ended.exchange(true);
  EXPECT_FALSE(opened_.servable->executor().Cancel(*request));
  opened_.servable->executor().RunBetweenBatches([] {});
  EXPECT_EQ(answers_.num_done(), num_answered + (was_first ? 0 : 1));
}

TEST_F(CutRequestTest, ARequestWhoseDeadlineHasPassedIsNeitherCutNorComputed) {
  OpenSlow();
  AskUntilCut(SomeIds(1000));
  const std::int64_t num_cut = NumCut();
  opened_.model->on_predict = [](const Batch&) { ADD_FAILURE() << "computed"; };
  const auto late = Make("late", SomeIds(1000));
  late->deadline_s = MonotonicSeconds() - 1;
  opened_.servable->executor().Submit(late);
  answers_.Wait(++num_asked_);
  EXPECT_EQ(answers_.Of("late").status.code, StatusCode::kDeadlineExceeded);
  EXPECT_EQ(NumCut(), num_cut);
}

TEST_F(CutRequestTest, ADeadlineThatPassesBetweenThePartsLeavesNoneOut) {
  OpenSlow();
  AskUntilCut(SomeIds(1000));
  const auto request = Make("in time", SomeIds(1000));
  // A part takes at least 12 ms.
  request->deadline_s = MonotonicSeconds() + 10e-3;
  opened_.servable->executor().Submit(request);
  answers_.Wait(++num_asked_);
  // On a busy machine it may not have begun by then.
  if (answers_.Of("in time").status.code == StatusCode::kDeadlineExceeded) return;
  ExpectAnswered(*request);
}

TEST_F(CutRequestTest, AVersionThatClosesAnswersWhatRunsInParts) {
  OpenSlow();
  AskUntilCut(SomeIds(1000));
  const auto request = Make("runs", SomeIds(1000));
  const auto waits = Make("waits", SomeIds(400));
  opened_.servable->executor().Submit(request);
  while (num_running_ == 0 && answers_.num_done() == num_asked_) std::this_thread::yield();
  opened_.servable->executor().Submit(waits);
  opened_.servable->Close();
  EXPECT_EQ(num_running_, 0);
  EXPECT_EQ(answers_.num_done(), num_asked_ + 2);
  ExpectAnswered(*request);
  ExpectAnswered(*waits);
}

TEST_F(CutRequestTest, NothingRunsBetweenThePartsOfARequest) {
  OpenSlow();
  AskUntilCut(SomeIds(1000));
  std::atomic<bool> is_over{false};
  std::atomic<int> num_between{0};
  std::thread deltas([&] {
    while (!is_over) {
      opened_.servable->executor().RunBetweenBatches([&] {
        EXPECT_EQ(num_running_, 0);
        ++num_between;
      });
    }
  });
  for (int i = 0; i < 20; ++i) {
    const auto request = Make("request " + std::to_string(num_asked_), SomeIds(500));
    opened_.servable->executor().Submit(request);
    answers_.Wait(++num_asked_);
    ExpectAnswered(*request);
  }
  is_over = true;
  deltas.join();
  EXPECT_GT(num_between, 0);
}

TEST_F(CutRequestTest, ManyClientsGetTheirOwnAnswers) {
  for (const bool shares_contexts : {false, true}) {
    OpenSlow(shares_contexts, shares_contexts);
    AskUntilCut(SomeIds(1000), shares_contexts);
    std::vector<std::shared_ptr<SumRequest>> requests;
    for (int i = 0; i < 60; ++i) {
      requests.push_back(Make("many " + std::to_string(num_asked_++),
                              SomeIds(i % 3 == 0 ? 400 : 1 + i % 9), shares_contexts));
      opened_.servable->executor().Submit(requests.back());
      if (i % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    answers_.Wait(num_asked_);
    for (const auto& request : requests) ExpectAnswered(*request);
    opened_.servable->Close();
  }
}

}  // namespace
}  // namespace recsys
