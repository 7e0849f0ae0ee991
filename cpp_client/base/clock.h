#ifndef RECSYS_BASE_CLOCK_H_
#define RECSYS_BASE_CLOCK_H_

#include <chrono>
#include <functional>
#include <limits>

namespace recsys {

/// Seconds on a monotonic clock; tests inject their own.
using Clock = std::function<double()>;

/// A time later than any other.
inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// CLOCK_MONOTONIC, like Python's time.monotonic().
inline double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds since 1970, like Python's time.time().
inline double EpochSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace recsys

#endif  // RECSYS_BASE_CLOCK_H_
