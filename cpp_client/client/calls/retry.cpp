#include "client/calls/retry.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace recsys::client {
namespace {

// Added to the server's time, so that rejected clients do not all return at once.
constexpr double kPushbackSpread = 0.1;

}  // namespace

Pushback Pushback::Of(std::string_view text) {
  Pushback pushback{true, std::nullopt};
  std::int64_t ms = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
  if (error == std::errc() && end == text.data() + text.size() && ms >= 0) pushback.ms = ms;
  return pushback;
}

std::optional<double> RetryWait(const ClientRetries& retries, const FailedAttempt& failed,
                                double draw) {
  if (failed.num_attempts >= retries.max_attempts) return std::nullopt;
  const bool is_full = failed.code == StatusCode::kResourceExhausted;
  if (!is_full && failed.code != StatusCode::kUnavailable) return std::nullopt;
  // Without a time to wait, the message was too large.
  if (is_full && !failed.pushback.is_given) return std::nullopt;
  if (failed.pushback.is_given && !failed.pushback.ms) return std::nullopt;
  double wait_s;
  if (failed.pushback.ms) {
    wait_s = static_cast<double>(*failed.pushback.ms) * 1e-3 * (1 + kPushbackSpread * draw);
  } else {
    const double doubled = retries.first_backoff_s * std::exp2(failed.num_attempts - 1);
    wait_s = std::min(doubled, retries.max_backoff_s) * (0.5 + 0.5 * draw);
  }
  // No time would be left for an answer.
  if (wait_s >= failed.remaining_s) return std::nullopt;
  return wait_s;
}

// The share that calls earn adds to the burst: never more than burst + share * calls.
RetryBudget::RetryBudget(const ClientRetries& retries)
    : share_(retries.budget_share), burst_(retries.budget_burst), tokens_(retries.budget_burst) {}

void RetryBudget::Earn() {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Bounds what an idle period saves up: at most the share of a thousand calls on top of the burst.
  tokens_ = std::min(tokens_ + share_, burst_ + 1000 * share_);
}

bool RetryBudget::Spend() {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Sums of shares such as 0.1 are slightly inexact.
  if (tokens_ < 1 - 1e-6) return false;
  tokens_ -= 1;
  return true;
}

}  // namespace recsys::client
