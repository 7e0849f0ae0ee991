// Tests of a servable version without a gateway.

#ifndef RECSYS_TESTS_CORE_EXECUTOR_EXECUTOR_TEST_H_
#define RECSYS_TESTS_CORE_EXECUTOR_EXECUTOR_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "engine/core/executor/executor.h"
#include "recsys/error.h"
#include "tests/core/fakes.h"

namespace recsys {

inline void DeliverAtOnce(Request& request, const Status& status, Message answer) {
  request.Done(status, std::move(answer));
}

class ExecutorTest : public testing::Test {
 protected:
  ExecutorTest() = default;
  ~ExecutorTest() override {
    if (opened_.servable != nullptr) opened_.servable->Close();
  }

  void Open(const VersionSettings& settings = {}, bool has_context = false) {
    opened_ = HostSum(DeliverAtOnce, settings, "1", has_context);
    opened_.servable->Open();
  }
  /// By a clock on which every batch is short, however busy the machine is.
  void OpenWithStoppedClock() {
    opened_ = HostSum(DeliverAtOnce, {}, "1", false, [] { return 1.0; });
    opened_.servable->Open();
  }
  std::shared_ptr<SumRequest> Make(const std::string& name, const SumRequest::Ids& ids,
                                   bool has_context = false) {
    auto request = std::make_shared<SumRequest>(answers_, name, ids, has_context);
    request->servable = opened_.servable;
    request->Read(*opened_.servable);
    opened_.servable->checker().Check(request->raw, &request->checked);
    return request;
  }
  std::shared_ptr<SumRequest> Submit(const std::string& name, const SumRequest::Ids& ids) {
    auto request = Make(name, ids);
    opened_.servable->executor().Submit(request);
    return request;
  }
  /// Keeps the (only) executor busy until the gate is opened.
  void Plug() {
    opened_.model->CloseGate();
    Submit("plug", {{7}});
    opened_.model->WaitUntilStarted(1);
  }
  /// Waits until an executor whose slots are taken takes no more requests.
  void WaitUntilRefused(Executor& executor) {
    const auto is_open = [&] {
      const auto further = Make("further", {{1}});
      try {
        executor.Submit(further);
      } catch (const Error&) {
        return false;
      }
      return executor.Cancel(*further);
    };
    while (is_open()) std::this_thread::yield();
  }
  void ExpectAnswered(const SumRequest& request) {
    const Answers::Answer answer = answers_.Of(request.request_id);
    EXPECT_TRUE(answer.status.ok()) << answer.status.text;
    EXPECT_EQ(answer.scores, request.expected());
  }

  Answers answers_;
  Opened opened_;
};

}  // namespace recsys

#endif  // RECSYS_TESTS_CORE_EXECUTOR_EXECUTOR_TEST_H_
