#ifndef RECSYS_TESTS_PROTOCOLS_FAKE_CALLS_H_
#define RECSYS_TESTS_PROTOCOLS_FAKE_CALLS_H_

// Calls without a transport.

#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "port/service.h"

namespace recsys {

/// What calls know of their clients.
struct CallFacts {
  std::map<std::string, std::string> metadata;
  double deadline_s = std::numeric_limits<double>::infinity();
  std::uint64_t connection_number = 0;
};

/// Thread-safe.
class FakeUnaryCall : public UnaryCall {
 public:
  explicit FakeUnaryCall(CallFacts facts = {}) : facts_(std::move(facts)) {}

  std::string_view Metadata(std::string_view key) const override {
    const auto found = facts_.metadata.find(std::string(key));
    return found == facts_.metadata.end() ? std::string_view() : found->second;
  }
  double deadline_s() const override { return facts_.deadline_s; }
  std::string peer() const override { return "fake"; }
  std::uint64_t connection_number() const override { return facts_.connection_number; }
  void Answer(Message message) override { End({}, message.Joined()); }
  void Fail(const Status& status) override { End(status, ""); }

  /// Blocks until the call has ended; with its status and answer.
  std::pair<Status, std::string> Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return num_ends_ > 0; });
    return {status_, answer_};
  }
  int num_ends() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_ends_;
  }

 private:
  void End(const Status& status, std::string answer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_ends_;
    status_ = status;
    answer_ = std::move(answer);
    changed_.notify_all();
  }

  const CallFacts facts_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int num_ends_ = 0;
  Status status_;
  std::string answer_;
};

/// A stream whose messages leave at once, or when the test says so. Thread-safe.
class FakeStreamCall : public StreamCall {
 public:
  explicit FakeStreamCall(bool holds_writes = false) : holds_writes_(holds_writes) {}

  std::string_view Metadata(std::string_view /*key*/) const override { return {}; }
  double deadline_s() const override { return std::numeric_limits<double>::infinity(); }
  std::string peer() const override { return "fake"; }
  void Read() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_reads_;
    changed_.notify_all();
  }
  void Write(Message message, std::function<void(bool)> written) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      answers_.push_back(message.Joined());
      changed_.notify_all();
      if (holds_writes_) {
        held_.push_back(std::move(written));
        return;
      }
    }
    written(true);
  }
  void Finish(const Status& status) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_ends_;
    end_ = status;
    changed_.notify_all();
  }

  /// Blocks until the handler has asked for so many messages.
  void WaitForReads(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return num_reads_ >= count; });
  }
  /// Blocks until so many answers were written; all that were.
  std::vector<std::string> WaitForAnswers(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return answers_.size() >= count; });
    return answers_;
  }
  Status WaitForEnd() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return end_.has_value(); });
    return *end_;
  }
  int num_reads() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_reads_;
  }
  int num_ends() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_ends_;
  }
  /// Lets the oldest message that is held leave, or get lost.
  void Release(bool has_left = true) {
    std::function<void(bool)> written;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      written = std::move(held_.front());
      held_.pop_front();
    }
    written(has_left);
  }

 private:
  const bool holds_writes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int num_reads_ = 0;
  int num_ends_ = 0;
  std::vector<std::string> answers_;
  std::deque<std::function<void(bool)>> held_;
  std::optional<Status> end_;
};

}  // namespace recsys

#endif  // RECSYS_TESTS_PROTOCOLS_FAKE_CALLS_H_
