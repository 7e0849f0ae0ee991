#ifndef RECSYS_ENGINE_CALLS_SUBMITTED_CALLS_H_
#define RECSYS_ENGINE_CALLS_SUBMITTED_CALLS_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "engine/core/gateway.h"
#include "engine/records.h"
#include "engine/settings/settings.h"
#include "port/service.h"

namespace recsys {

/// Requests that did not come through the port: each is read and answered like a unary call, and
/// ends as an AnswerEvent. Thread-safe.
class SubmittedCalls {
 public:
  /// Both must outlive the calls.
  SubmittedCalls(Gateway& gateway, Records& records) : gateway_(gateway), records_(records) {}

  /// Throws Error (kConfig) if the form is unknown or the ticket in use.
  void Submit(std::int64_t ticket, const SubmitOptions& options, std::string message);
  /// Cancels the request; it still ends as an AnswerEvent.
  void Cancel(std::int64_t ticket);

 private:
  class Call;
  /// Returns the name as text that lives as long as this object.
  const char* Interned(const std::string& protocol);
  void End(std::int64_t ticket, const Status& status, std::string message);

  Gateway& gateway_;
  Records& records_;
  const Clock clock_ = MonotonicSeconds;
  std::mutex mutex_;
  std::set<std::string> protocols_;
  std::unordered_map<std::int64_t, std::shared_ptr<UnaryHandler>> open_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CALLS_SUBMITTED_CALLS_H_
