#ifndef RECSYS_TESTS_CORE_GATEWAY_PARTS_H_
#define RECSYS_TESTS_CORE_GATEWAY_PARTS_H_

// A gateway with one model behind it.

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/fakes.h"

namespace recsys {

/// Notes what it sees.
class NotingObserver : public Observer {
 public:
  bool KeepsAnswer(Request& request) override { return request.request_id == kept_; }
  void Accepted(const Request& request) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    accepted_.push_back(request.request_id);
  }
  void Ended(const Request& request, const Status& status) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_.push_back(request.request_id + " " + StatusName(status.code));
    protocols_.emplace_back(request.protocol);
    outputs_.push_back(request.outputs);
  }
  std::vector<std::string> accepted() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return accepted_;
  }
  std::vector<std::string> ended() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
  }
  std::vector<std::string> protocols_;
  std::vector<std::string> outputs_;
  /// The request whose answer is kept.
  std::string kept_ = "none";

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> accepted_, ended_;
};

class GatewayTest : public testing::Test {
 protected:
  ~GatewayTest() override {
    for (const Opened& opened : all_) opened.servable->Close();
  }

  Opened Host(const VersionSettings& settings = {}, const std::string& version = "1") {
    all_.push_back(
        HostSum([this](Request& request, const Status& status,
                       Message answer) { gateway_.End(request, status, std::move(answer)); },
                settings, version));
    all_.back().servable->Open();
    return all_.back();
  }
  Opened Serve(const VersionSettings& settings = {}) {
    const Opened opened = Host(settings);
    router_.Set({opened.servable, nullptr});
    return opened;
  }
  std::shared_ptr<SumRequest> Make(const std::string& name, const SumRequest::Ids& ids = {{1}}) {
    return std::make_shared<SumRequest>(answers_, name, ids);
  }
  std::shared_ptr<SumRequest> Predict(const std::string& name, const SumRequest::Ids& ids = {{1}}) {
    const auto request = Make(name, ids);
    gateway_.Predict(request);
    return request;
  }
  Status Refusal(const std::shared_ptr<SumRequest>& request) {
    gateway_.Predict(request);
    return answers_.Of(request->request_id).status;
  }
  /// Over all versions, and requests that reached none.
  std::int64_t Count(Outcome outcome) const {
    std::int64_t sum = gateway_.unrouted()[static_cast<std::size_t>(outcome)];
    for (const Opened& opened : all_) sum += opened.servable->metrics().Totals().of(outcome);
    return sum;
  }
  std::int64_t num_accepted() const {
    std::int64_t sum = 0;
    for (const Opened& opened : all_) sum += opened.servable->metrics().Totals().accepted;
    return sum;
  }

  Answers answers_;
  OneRoute router_;
  NotingObserver watcher_;
  Gateway gateway_{router_, &watcher_};
  std::vector<Opened> all_;
};

}  // namespace recsys

#endif  // RECSYS_TESTS_CORE_GATEWAY_PARTS_H_
