// What fails in a servable version: a model, one of a batch's requests, an output, an answer.

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "recsys/error.h"
#include "tests/core/executor/executor_test.h"

namespace recsys {
namespace {

TEST_F(ExecutorTest, AModelThatFailsFailsItsBatchAndNoOther) {
  const HeardLog log;
  Open();
  opened_.model->on_predict = [](const Batch& batch) {
    for (const std::int64_t id : batch.sparse.values) {
      if (id == 777) throw std::runtime_error("secret at 0x7f: does not like this ID");
    }
  };
  const auto before = Submit("before", {{1}});
  answers_.Wait(1);
  Submit("bad", {{777}});
  answers_.Wait(2);
  const auto after = Submit("after", {{2}});
  answers_.Wait(3);
  ExpectAnswered(*before);
  ExpectAnswered(*after);
  const Status status = answers_.Of("bad").status;
  EXPECT_EQ(status.code, StatusCode::kInternal);
  EXPECT_EQ(status.text, "the model failed on this request; the log says why");
  EXPECT_NE(log.text().find("ERROR a batch failed: model sum, version 1, 1 requests, 1 rows, 1 "
                            "IDs; request IDs: 'bad'"),
            std::string::npos)
      << log.text();
  EXPECT_NE(log.text().find("does not like this ID"), std::string::npos);
}

TEST_F(ExecutorTest, ARequestThatIsToBlameFailsAlone) {
  Open();
  const std::string told = "computed ID: table 'c' got 777, expected 0 <= ID < 50";
  opened_.model->on_predict = [&](const Batch& batch) {
    for (const std::int64_t id : batch.sparse.values) {
      if (id == 777) throw Error(ErrorKind::kRequest, told);
    }
  };
  Plug();
  std::vector<std::shared_ptr<SumRequest>> innocent;
  for (int i = 0; i < 13; ++i) {
    if (i == 0 || i == 7 || i == 8) {
      Submit("bad " + std::to_string(i), {{2}, {777}});
    } else {
      innocent.push_back(Submit(std::to_string(i), {{i}, {3, 4}}));
    }
  }
  opened_.model->OpenGate();
  answers_.Wait(14);
  for (const auto& request : innocent) ExpectAnswered(*request);
  for (const char* name : {"bad 0", "bad 7", "bad 8"}) {
    EXPECT_EQ(answers_.Of(name).status.code, StatusCode::kInvalidArgument);
    EXPECT_EQ(answers_.Of(name).status.text, told);
  }
}

TEST_F(ExecutorTest, AnyFailureOfABatchIsAnsweredToThoseWhomItFailsAlone) {
  const HeardLog log;
  Open();
  opened_.model->on_predict = [](const Batch& batch) {
    for (const std::int64_t id : batch.sparse.values) {
      if (id == 777) throw std::runtime_error("does not like this ID");
    }
  };
  Plug();
  std::vector<std::shared_ptr<SumRequest>> innocent;
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 7 || i == 8) {
      Submit("bad " + std::to_string(i), {{2}, {777}});
    } else {
      innocent.push_back(Submit(std::to_string(i), {{i}, {3, 4}}));
    }
  }
  opened_.model->OpenGate();
  answers_.Wait(17);
  for (const auto& request : innocent) ExpectAnswered(*request);
  for (const char* name : {"bad 0", "bad 7", "bad 8"}) {
    EXPECT_EQ(answers_.Of(name).status.code, StatusCode::kInternal);
  }
  // The first is the plug's.
  const std::size_t num_runs = opened_.model->batches().size() - 1;
  EXPECT_LE(num_runs, 2 * 16 - 1);
  const std::string text = log.text();
  EXPECT_NE(text.find("3 requests, 6 rows, 6 IDs; request IDs: 'bad 0', 'bad 7', 'bad 8'"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("a batch failed"), text.rfind("a batch failed"));
}

TEST_F(ExecutorTest, ABatchOfFailuresRunsNoMoreOftenThanItsBound) {
  Open();
  opened_.model->on_predict = [](const Batch& batch) {
    if (!batch.sparse.values.empty()) throw std::runtime_error("does not like anything");
  };
  Plug();
  for (int i = 0; i < 16; ++i) Submit(std::to_string(i), {{i}});
  opened_.model->OpenGate();
  answers_.Wait(17);
  EXPECT_EQ(opened_.model->batches().size(), 1 + 2 * 16 - 1);
}

TEST_F(ExecutorTest, NoRequestRunsAgainBehindItsDeadline) {
  Open();
  const double deadline_s = MonotonicSeconds() + 0.2;
  opened_.model->on_predict = [&](const Batch& batch) {
    for (const std::int64_t id : batch.sparse.values) {
      if (id != 777) continue;
      while (MonotonicSeconds() <= deadline_s) std::this_thread::yield();
      throw std::runtime_error("does not like this ID");
    }
  };
  Plug();
  Submit("bad", {{777}});
  const auto hurried = Make("hurried", {{1}});
  hurried->deadline_s = deadline_s;
  opened_.servable->executor().Submit(hurried);
  const auto patient = Submit("patient", {{2}});
  opened_.model->OpenGate();
  answers_.Wait(4);
  EXPECT_EQ(answers_.Of("bad").status.code, StatusCode::kInternal);
  EXPECT_EQ(answers_.Of("hurried").status.code, StatusCode::kDeadlineExceeded);
  ExpectAnswered(*patient);
}

TEST_F(ExecutorTest, SyntheticRequestsAreNotToBlameForAWarmUp) {
  opened_ = HostSum(DeliverAtOnce);
  opened_.model->on_predict = [](const Batch& batch) {
    if (batch.num_rows == 32) throw Error(ErrorKind::kRequest, "computed ID: table 'c'");
  };
  opened_.servable->Open();
  const auto request = Submit("a", {{1}});
  answers_.Wait(1);
  ExpectAnswered(*request);
}

TEST_F(ExecutorTest, OutputsThatContradictTheSignatureReachNoClient) {
  const HeardLog log;
  Open();
  opened_.model->returns_too_little = true;
  Submit("a", {{1}, {2}});
  answers_.Wait(1);
  EXPECT_EQ(answers_.Of("a").status.code, StatusCode::kInternal);
  EXPECT_NE(log.text().find("output 'score': got 1 numbers, expected 2"), std::string::npos);
}

TEST_F(ExecutorTest, AnAnswerThatCannotBeWrittenFailsItsOwnRequestOnly) {
  const HeardLog log;
  Open();
  Plug();
  const auto unwritable = Make("unwritable", {{1}});
  unwritable->on_encode = [](const Rows&) -> Message { throw std::runtime_error("too wide"); };
  const auto refused = Make("refused", {{1}});
  refused->on_encode = [](const Rows&) -> Message {
    throw Error(ErrorKind::kRequest, "outputs: got 'x', expected 'score'");
  };
  opened_.servable->executor().Submit(unwritable);
  opened_.servable->executor().Submit(refused);
  const auto neighbour = Submit("neighbour", {{3}});
  opened_.model->OpenGate();
  answers_.Wait(4);
  const Status status = answers_.Of("unwritable").status;
  EXPECT_EQ(status.code, StatusCode::kInternal);
  EXPECT_EQ(status.text, "the server failed on this request; its log says why");
  EXPECT_EQ(answers_.Of("refused").status.text, "outputs: got 'x', expected 'score'");
  ExpectAnswered(*neighbour);
  EXPECT_NE(log.text().find("too wide"), std::string::npos);
}

}  // namespace
}  // namespace recsys
