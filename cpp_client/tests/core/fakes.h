#ifndef RECSYS_TESTS_CORE_FAKES_H_
#define RECSYS_TESTS_CORE_FAKES_H_

// Requests, models and routers that the tests of this room share.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "engine/core/gateway.h"
#include "engine/core/request.h"
#include "engine/core/servable.h"

namespace recsys {

/// Collects how requests ended. Thread-safe.
class Answers {
 public:
  struct Answer {
    Status status;
    std::vector<float> scores;
    BatchTimes times;
  };
  void Take(const std::string& name, Answer answer);
  /// Blocks until so many requests were Done.
  void Wait(int count);
  int num_done() const;
  /// The answer of a request that was Done exactly once.
  Answer Of(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<std::string, Answer>> answers_;
};

/// A request of one dense number and some IDs in each row: its score is their sum.
class SumRequest : public Request {
 public:
  using Ids = std::vector<std::vector<std::int64_t>>;
  SumRequest(Answers& answers, std::string name, const Ids& ids, bool has_context = false);

  void Read(const Servable& by) override;
  Message Encode(const Servable& by, const Rows& rows) override;
  void Done(const Status& status, Message answer) override;

  const std::vector<float>& expected() const { return expected_; }
  /// Called by Read, and instead of Encode where it is set.
  std::function<void(const Servable&)> on_read;
  std::function<Message(const Rows&)> on_encode;

 private:
  Answers& answers_;
  const std::string name_;
  std::vector<float> dense_, expected_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> values_;
  bool has_context_;
};

/// Dense "d" [B, 1] and sparse "id", summed; with a context where asked for: then "id" is of it.
Signature SumSignature(bool has_context = false);

/// Computes sums. What is public is set before it runs, but for the gate.
class SumModel : public ServedModel {
 public:
  explicit SumModel(bool has_context = false) : signature_(SumSignature(has_context)) {}

  const Signature& signature() const override { return signature_; }
  Outputs Predict(const Batch& batch) override;
  bool shares_contexts() const override { return on_context != nullptr; }
  Delta PrepareDelta(const std::string&) override { return {on_delta, 3}; }
  ContextCacheCounts context_cache() const override { return {num_counted, 2, 3, 4, 5}; }
  void ResetContextCacheCounts() override { num_counted = 0; }

  /// Batches wait at a closed gate, each after it has been counted as started.
  void CloseGate();
  void OpenGate();
  /// Until so many batches have come since the gate was closed first.
  void WaitUntilStarted(int count);
  /// Rows of those batches.
  std::vector<std::int64_t> batches() const;

  /// Called with each batch; may throw.
  std::function<void(const Batch&)> on_predict;
  /// Makes batches share their context; called before one computes it, may throw.
  std::function<void()> on_context;
  /// Exchanges the rows of a delta.
  std::function<void()> on_delta = [] {};
  std::atomic<bool> returns_too_little{false};
  /// Hits of its context cache.
  std::atomic<std::int64_t> num_counted{7};

 private:
  void PassGate(const Batch& batch);
  /// Computes the sum of the only context's IDs, unless another batch has.
  SharedContext::Values ContextOf(const Batch& batch) const;

  const Signature signature_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
  bool is_watched_ = false;
  std::vector<std::int64_t> batches_;
};

/// What the model would say.
std::vector<float> SumsOf(const Batch& batch);

/// Knows one model, whose version can be exchanged. Thread-safe.
class OneRoute : public Router {
 public:
  Route Find(const RouteQuery& query) const override;
  void Set(Route route);
  std::function<void()> on_find;

 private:
  mutable std::mutex mutex_;
  Route route_;
};

/// A model, servable.
struct Opened {
  /// Outlives the servable, which frees its own.
  std::shared_ptr<SumModel> model;
  std::shared_ptr<Servable> servable;
};
Opened HostSum(Servable::Deliver deliver, const VersionSettings& settings = {},
               const std::string& version = "1", bool has_context = false,
               Clock clock = MonotonicSeconds);

/// Collects records while it lives. Thread-safe.
class HeardLog {
 public:
  HeardLog();
  ~HeardLog();
  /// Messages and exceptions, a line each.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace recsys

#endif  // RECSYS_TESTS_CORE_FAKES_H_
