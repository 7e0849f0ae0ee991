#include "engine/counters/outcomes.h"

namespace recsys {

Outcome OutcomeOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return Outcome::kOk;
    case StatusCode::kInvalidArgument:
      return Outcome::kInvalid;
    case StatusCode::kNotFound:
      return Outcome::kNotFound;
    case StatusCode::kResourceExhausted:
      return Outcome::kRejected;
    case StatusCode::kDeadlineExceeded:
      return Outcome::kExpired;
    case StatusCode::kCancelled:
      return Outcome::kCancelled;
    case StatusCode::kUnavailable:
      return Outcome::kUnavailable;
    default:
      return Outcome::kFailed;
  }
}

const char* OutcomeName(Outcome outcome) {
  static constexpr const char* kNames[kNumOutcomes] = {
      "ok", "invalid", "not_found", "rejected", "expired", "cancelled", "unavailable", "failed"};
  return kNames[static_cast<std::size_t>(outcome)];
}

}  // namespace recsys
