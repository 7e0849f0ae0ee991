#ifndef RECSYS_CLIENT_CALLS_RETRY_H_
#define RECSYS_CLIENT_CALLS_RETRY_H_

// Decides whether and when a failed call is retried: policy only, without clocks, threads or
// sleeps.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>

#include "recsys/client.h"

namespace recsys::client {

/// The server's grpc-retry-pushback-ms.
struct Pushback {
  /// Whether the server sent it.
  bool is_given = false;
  /// Not set if the server asks not to retry (gRPC's convention: not a number, or a negative one).
  std::optional<std::int64_t> ms;

  static Pushback Of(std::string_view text);
};

/// One failed attempt.
struct FailedAttempt {
  StatusCode code = StatusCode::kUnknown;
  Pushback pushback;
  /// Attempts of the call so far, including this one.
  int num_attempts = 1;
  /// Time left until the call's deadline.
  double remaining_s = 0;
};

/// Returns how long to wait before the next attempt, or none if the call has failed. Does not check
/// the budget. `draw` is uniform in [0, 1).
std::optional<double> RetryWait(const ClientRetries& retries, const FailedAttempt& failed,
                                double draw);

/// Limits the retries of all calls to a share of the calls. Thread-safe.
class RetryBudget {
 public:
  explicit RetryBudget(const ClientRetries& retries);
  /// Notes that a call begins.
  void Earn();
  /// Whether another retry is within the budget; if so, it is spent.
  bool Spend();

 private:
  const double share_;
  const double burst_;
  std::mutex mutex_;
  double tokens_;
};

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_CALLS_RETRY_H_
