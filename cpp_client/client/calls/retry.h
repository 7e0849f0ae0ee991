#ifndef RECSYS_CLIENT_CALLS_RETRY_H_
#define RECSYS_CLIENT_CALLS_RETRY_H_

// Whether and when a failed call is tried again: policy, without clocks, threads or sleeps.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "recsys/client.h"

namespace recsys::client {

/// What the server says in grpc-retry-pushback-ms.
struct Pushback {
  /// Whether it says anything.
  bool is_given = false;
  /// None where it asks not to try again (gRPC's convention: what is no number, or a negative one).
  std::optional<std::int64_t> ms;

  static Pushback Of(std::string_view text);
};

/// One attempt that has failed.
struct FailedAttempt {
  StatusCode code = StatusCode::kUnknown;
  Pushback pushback;
  /// Attempts of the call so far, this one included.
  int num_attempts = 1;
  /// Until the call's deadline.
  double remaining_s = 0;
};

/// How long to wait before the next attempt; none: the call has failed. Does not ask the budget.
/// `draw` is uniform in [0, 1).
std::optional<double> RetryWait(const ClientRetries& retries, const FailedAttempt& failed,
                                double draw);

/// Bounds the retries of all calls to a share of the calls. Thread-safe.
class RetryBudget {
 public:
  explicit RetryBudget(const ClientRetries& retries);
  /// A call begins.
  void Earn();
  /// A call wants to be tried again; false where that would be too many.
  bool Spend();

 private:
  const double share_;
  const double burst_;
  std::mutex mutex_;
  double tokens_;
};

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_CALLS_RETRY_H_
