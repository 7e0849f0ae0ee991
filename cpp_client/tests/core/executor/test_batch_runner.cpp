// Batches in the test's own thread, so that its allocations fail where the test says.

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/core/executor/batch_runner.h"
#include "engine/core/shadow.h"
#include "recsys/error.h"
#include "tests/core/allocations.h"
#include "tests/core/executor/executor_test.h"

namespace recsys {
namespace {

constexpr std::int64_t kBad = 777;

bool HasBad(const Batch& batch) {
  for (const std::int64_t id : batch.sparse.values) {
    if (id == kBad) return true;
  }
  return false;
}

class BatchRunnerTest : public ExecutorTest {
 protected:
  /// Runs a batch of requests, of which two fail, another one is expired, and one has a context;
  /// some allocations fail. Returns whether one did.
  bool RunWithFailures(std::size_t num_good, std::size_t count) {
    Answers answers;
    std::vector<std::shared_ptr<Request>> requests;
    for (const char* name : {"a", "bad", "b", "late", "bad, too", "c", "ranking"}) {
      const bool is_bad = std::string(name).rfind("bad", 0) == 0;
      const bool is_ranking = std::string(name) == "ranking";
      auto request = std::make_shared<SumRequest>(answers, name,
                                                  SumRequest::Ids{{is_bad ? kBad : 1}}, is_ranking);
      request->servable = opened_.servable;
      request->Read(*opened_.servable);
      opened_.servable->checker().Check(request->raw, &request->checked);
      if (std::string(name) == "late") request->deadline_s = 0;
      requests.push_back(request);
    }
    const std::size_t num = requests.size();
    const Servable::Deliver deliver = [](Request& request, const Status& status, Message answer) {
      const GoodAllocations good;
      request.Done(status, std::move(answer));
    };
    const Clock clock = MonotonicSeconds;
    BatchRunner runner(*opened_.servable, deliver, clock);
    bool has_failed = false;
    {
      const FailingAllocations failing(num_good, count);
      runner.Run(&requests);
      has_failed = failing.has_failed();
    }
    EXPECT_EQ(answers.num_done(), static_cast<int>(num)) << num_good << " good, then " << count;
    // Each was Done once; and the runner goes on.
    for (const char* name : {"bad", "bad, too"}) EXPECT_FALSE(answers.Of(name).status.ok());
    const auto next = std::make_shared<SumRequest>(answers, "next", SumRequest::Ids{{5}});
    next->servable = opened_.servable;
    next->Read(*opened_.servable);
    opened_.servable->checker().Check(next->raw, &next->checked);
    requests = {next};
    runner.Run(&requests);
    EXPECT_EQ(answers.Of("next").scores, next->expected());
    return has_failed;
  }
};

TEST_F(BatchRunnerTest, EveryRequestIsAnsweredOnceWhereverMemoryEnds) {
  if (!kCountsAllocations) GTEST_SKIP() << "allocations are not counted";
  const HeardLog log;
  opened_ = HostSum(DeliverAtOnce, {}, "1", true);
  for (const bool is_told : {false, true}) {
    opened_.model->on_predict = [is_told](const Batch& batch) {
      if (!HasBad(batch)) return;
      if (is_told) throw Error(ErrorKind::kRequest, "the model refuses an ID that no table has");
      throw std::runtime_error("the model failed on an ID that no table has");
    };
    for (const std::size_t count : {std::size_t{1}, std::size_t{3}, std::size_t{1'000'000}}) {
      std::size_t num_good = 0;
      while (RunWithFailures(num_good, count) && !HasFailure()) ++num_good;
      EXPECT_GT(num_good, 20U);
    }
  }
}

TEST_F(BatchRunnerTest, RowsThatCannotBeReadEndTheirRequestsOnly) {
  const HeardLog log;
  opened_ = HostSum(DeliverAtOnce);
  opened_.model->on_predict = [](const Batch& batch) {
    if (HasBad(batch)) throw Error(ErrorKind::kNotReady, "rows of table 't': node 1 of 2 is away");
  };
  std::vector<std::shared_ptr<Request>> requests;
  for (const char* name : {"a", "bad", "b"}) {
    requests.push_back(Make(name, {{std::string(name) == "bad" ? kBad : 1}}));
  }
  const Servable::Deliver deliver = DeliverAtOnce;
  const Clock clock = MonotonicSeconds;
  BatchRunner(*opened_.servable, deliver, clock).Run(&requests);
  for (const char* name : {"a", "b"}) EXPECT_TRUE(answers_.Of(name).status.ok()) << name;
  EXPECT_EQ(answers_.Of("bad").status.code, StatusCode::kUnavailable);
  EXPECT_EQ(log.text(), "");
}

TEST_F(BatchRunnerTest, AShadowThatThrowsAnythingHurtsNoAnswer) {
  const HeardLog log;
  opened_ = HostSum(DeliverAtOnce);
  const Opened second = HostSum(DeliverAtOnce, {}, "2");
  const auto shadow = std::make_shared<Shadow>(
      second.servable, std::vector<std::shared_ptr<Servable>>{opened_.servable},
      [](ShadowEvent) -> bool { throw 7; });
  std::vector<std::shared_ptr<Request>> requests;
  for (const char* name : {"a", "b"}) {
    const auto request = Make(name, {{1}});
    request->shadow = shadow->Begin(*request, *opened_.servable);
    // The shadow computes first: the pair is passed on with the answer.
    request->shadow->Encode(*second.servable, {1, {"1234"}, nullptr});
    requests.push_back(request);
  }
  const Servable::Deliver deliver = DeliverAtOnce;
  const Clock clock = MonotonicSeconds;
  int num_runs = 0;
  opened_.model->on_predict = [&](const Batch&) { ++num_runs; };
  BatchRunner(*opened_.servable, deliver, clock).Run(&requests);
  EXPECT_EQ(num_runs, 1);
  for (const char* name : {"a", "b"}) EXPECT_TRUE(answers_.Of(name).status.ok());
  EXPECT_EQ(second.servable->metrics().Totals().shadow_failed, 2);
  EXPECT_NE(log.text().find("an answer could not be kept for the shadow"), std::string::npos);
}

}  // namespace
}  // namespace recsys
