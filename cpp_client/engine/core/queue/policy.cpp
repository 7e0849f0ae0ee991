#include "engine/core/queue/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace recsys {
namespace {

// Expected costs of a model that has never run: a small DLRM on one core. Only the order of
// magnitude matters; a few batches replace it.
constexpr std::array<double, 3> kFirstCosts = {100e-6, 20e-6, 0.05e-6};
// Standard deviation of the first costs, as a multiple of them.
constexpr double kFirstDoubt = 3.0;
// Drift of a cost per batch, as a share of it: durations some 20 batches ago have half the weight.
// The first batches drift more, as their model has only just been loaded.
constexpr double kDrift = 0.01;
constexpr double kFirstDrift = 0.3;
// Scatter of durations around the expected one: a share of it, and a constant.
constexpr double kScatter = 0.2;
constexpr double kScatterS = 5e-6;
// Maximum standard deviations by which one duration moves the costs.
constexpr double kMostDeviations = 3.0;
// Number of batches before the costs are relied on.
constexpr int kNumKnown = 4;
constexpr int kNumCounted = 1000;

// Weight of the last batch in the slowdown, and of the last wake-up in its cost.
constexpr double kWeight = 0.1;
// Weight of the last batch in the shortage.
constexpr double kShortageWeight = 0.02;
constexpr double kMostSlowdown = 8.0;
// While no batches run concurrently the slowdown decays, so that concurrency is tried again now and
// then.
constexpr double kForget = 0.002;
// Upper bound of a learned wake-up: a longer one says little about the next.
constexpr double kLongestWakeS = 2e-3;
// Another executor's share must take at least as long as starting it and its batch; if processors
// are short, up to kThrift times longer, unless the running batches take kPatience times that.
constexpr double kThrift = 3.0;
constexpr double kPatience = 5.0;
// The rate of requests is measured over about this many seconds.
constexpr double kRateS = 5e-3;
// Requests that may be expected while a batch runs in the polling thread. A single client that
// waits for each answer sends fewer than one.
constexpr double kFewArrivals = 1.2;
// Expected duration of a batch for which a light client may wait, in seconds and as a multiple of a
// batch's fixed cost: longer ones compute a few percent more rows a second.
constexpr double kLongestBatchS = 1e-3;
constexpr double kMostFixedCosts = 16.0;
// A request is cut where that takes at most this share of the time: a smaller gain would not be
// worth the fixed costs of the parts.
constexpr double kWorthCutting = 0.8;
// And only if it takes at least this long: executors that look idle between short requests are
// about to be needed.
constexpr double kLeastCutS = 500e-6;
// A batch is checked again when it takes a quarter plus this longer than expected: the polling
// thread's timers have a resolution of milliseconds.
constexpr double kLookAgainS = 1e-3;

}  // namespace

BatchCosts::BatchCosts() : costs_(kFirstCosts) {
  for (int i = 0; i < kNum; ++i) covariance_[i][i] = std::pow(kFirstDoubt * kFirstCosts[i], 2);
}

double BatchCosts::SecondsOf(const BatchSize& size) const {
  return costs_[0] + costs_[1] * static_cast<double>(size.num_rows) +
         costs_[2] * static_cast<double>(size.num_ids);
}

bool BatchCosts::is_known() const { return num_learned_ >= kNumKnown; }

void BatchCosts::Learn(const BatchSize& size, double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return;
  num_learned_ = std::min(num_learned_ + 1, kNumCounted);
  const double drift = kDrift + kFirstDrift / num_learned_;
  const Vector x = {1, static_cast<double>(size.num_rows), static_cast<double>(size.num_ids)};
  for (int i = 0; i < kNum; ++i) {
    const double unit = std::max(costs_[i], 0.01 * kFirstCosts[i]);
    const double most = std::pow(kFirstDoubt * unit, 2);
    if (covariance_[i][i] < most) covariance_[i][i] += std::pow(drift * unit, 2);
  }
  // Covariance of each cost with the duration, and how uncertain the expected duration is.
  Vector cross{};
  double uncertainty = 0;
  for (int i = 0; i < kNum; ++i) {
    for (int j = 0; j < kNum; ++j) cross[i] += covariance_[i][j] * x[j];
    uncertainty += x[i] * cross[i];
  }
  const double expected_s = SecondsOf(size);
  const double total = uncertainty + std::pow(kScatter * expected_s + kScatterS, 2);
  const double most_s = kMostDeviations * std::sqrt(total);
  const double error_s = std::clamp(seconds - expected_s, -most_s, most_s);
  for (int i = 0; i < kNum; ++i) {
    const double gain = cross[i] / total;
    costs_[i] = std::max(costs_[i] + gain * error_s, 0.0);
    for (int j = 0; j < kNum; ++j) covariance_[i][j] -= gain * cross[j];
  }
}

void BatchPolicy::Arrived(double now_s, std::int64_t num_requests) {
  rate_ = RateAt(now_s) + static_cast<double>(num_requests) / kRateS;
  last_arrived_s_ = now_s;
}

double BatchPolicy::RateAt(double now_s) const {
  const double age = std::max(now_s - last_arrived_s_, 0.0) / kRateS;
  // Called under the queue's lock: most calls follow each other so soon that the first terms are
  // exact to 1e-9.
  constexpr double kSoon = 1e-3;
  return rate_ * (age < kSoon ? 1 - age + age * age / 2 : std::exp(-age));
}

bool BatchPolicy::IsForHere(const State& state) const {
  return state.may_run_here && IsShort(state.waiting) &&
         RateAt(state.now_s) * costs_.SecondsOf(state.waiting) < kFewArrivals;
}

bool BatchPolicy::IsShort(const BatchSize& size) const {
  const double most_s = std::clamp(4 * wake_s_, kShortS, kLongestHereS);
  return costs_.is_known() && costs_.SecondsOf(size) <= most_s;
}

Act BatchPolicy::Decide(const State& state) const {
  if (num_running_ == 0) return IsForHere(state) ? Act::kRunHere : Act::kWake;
  return state.num_free > 0 && Pays(state, wake_s_) ? Act::kWake : Act::kLeave;
}

bool BatchPolicy::GoesOn(const State& state) const { return num_running_ == 0 || Pays(state, 0); }

bool BatchPolicy::Pays(const State& state, double wake_s) const {
  if (!costs_.is_known()) return true;
  const double remaining_s = RemainingS(state.now_s);
  const double alone_s = costs_.SecondsOf(state.waiting);
  // Concurrent batches slow each other down.
  const double lost_s = (slowdown_ - 1) * (alone_s + std::min(remaining_s, alone_s));
  // What takes longer than the batch that runs, both compute together.
  const double whole_s = remaining_s + alone_s;
  const bool is_shared =
      alone_s > remaining_s && wake_s + slowdown_ * whole_s / 2 < kWorthCutting * whole_s;
  if (wake_s + lost_s >= remaining_s && !is_shared) return false;
  // If processors are short, small batches wait to become larger, but not for very long.
  const double work_s = alone_s - costs_.fixed_s();
  const double least_s = shortage_ * kThrift * (costs_.fixed_s() + wake_s);
  return work_s >= least_s || remaining_s > kPatience * least_s;
}

double BatchPolicy::WorthwhileS(double empty_s) const {
  return (1 + shortage_ * kThrift) * (empty_s + wake_s_) * slowdown_;
}

std::int64_t BatchPolicy::ShareOf(const State& state) const {
  const std::int64_t rows = std::max<std::int64_t>(state.waiting.num_rows, 1);
  if (!costs_.is_known()) return rows;
  const double work_s = costs_.SecondsOf(state.waiting) - costs_.fixed_s();
  double num = NumShares(state, work_s);
  if (state.has_light_client) {
    num = std::max(num, work_s / std::max(kLongestBatchS, kMostFixedCosts * costs_.fixed_s()));
  }
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(rows) / num));
}

double BatchPolicy::NumShares(const State& state, double work_s) const {
  const double least_s = WorthwhileS(costs_.fixed_s());
  if (state.num_free <= 0 || work_s < 2 * least_s) return 1;
  const double num =
      std::min(static_cast<double>(state.num_free) + 1, std::floor(work_s / least_s));
  // The caller would end a second share after twice the time of one: another executor must do so
  // earlier, although it is woken first and both slow each other down.
  const double share_s = costs_.fixed_s() + work_s / num;
  return wake_s_ + slowdown_ * share_s > 2 * share_s ? 1 : num;
}

int BatchPolicy::NumParts(const State& state) const {
  if (!costs_.is_known() || state.num_free <= 0) return 1;
  const double alone_s = costs_.SecondsOf(state.waiting);
  if (alone_s < kLeastCutS) return 1;
  const double context_s = costs_.SecondsOfIds(state.num_context_ids) - costs_.fixed_s();
  const double once_s = state.shares_context ? context_s : 0;
  // What each part computes, whatever its rows.
  const double each_s = costs_.fixed_s() + context_s - once_s;
  const double work_s = alone_s - once_s - each_s;
  const double num =
      std::min(static_cast<double>(state.num_free) + 1, std::floor(work_s / WorthwhileS(each_s)));
  if (num < 2) return 1;
  const double part_s = each_s + work_s / num;
  const double parts_s = once_s + wake_s_ + slowdown_ * part_s;
  return parts_s < kWorthCutting * alone_s ? static_cast<int>(num) : 1;
}

double BatchPolicy::RemainingS(double now_s) const {
  double least_s = std::numeric_limits<double>::infinity();
  for (const Running& one : running_) {
    if (!one.is_running) continue;
    const double left_s = one.began_s + one.expected_s - now_s;
    // The longer a batch is overdue, the longer it is expected to still take.
    least_s = std::min(least_s, std::abs(left_s));
  }
  return least_s;
}

double BatchPolicy::LooksAgainS(double now_s) const {
  double at_s = std::numeric_limits<double>::infinity();
  for (const Running& one : running_) {
    if (one.is_running) at_s = std::min(at_s, one.began_s + 1.25 * one.expected_s);
  }
  return std::max(at_s, now_s) + kLookAgainS;
}

int BatchPolicy::Began(const BatchSize& size, double now_s, int num_beside) {
  int number = 0;
  const int num = static_cast<int>(running_.size());
  while (number < num && running_[number].is_running) ++number;
  if (number == num) running_.emplace_back();
  if (num_running_ > 0) {
    for (Running& one : running_) one.has_company = true;
  }
  const bool has_company = num_beside > 0;
  const double expected_s = costs_.SecondsOf(size) * (has_company ? slowdown_ : 1);
  running_[number] = {true, size, now_s, expected_s, has_company};
  ++num_running_;
  return number;
}

void BatchPolicy::Ended(int number, double now_s, int num_beside, bool was_preempted) {
  NotePreempted(was_preempted);
  Release(number);
  const Running& one = running_[number];
  const double seconds = now_s - one.began_s;
  if (one.has_company || num_beside > 0) {
    LearnBeside(one.size, seconds);
  } else {
    slowdown_ += kForget * (1 - slowdown_);
    costs_.Learn(one.size, seconds);
  }
}

void BatchPolicy::LearnBeside(const BatchSize& size, double seconds) {
  const double ratio = seconds / std::max(costs_.SecondsOf(size), 1e-9);
  slowdown_ += kWeight * (std::clamp(ratio, 1.0, kMostSlowdown) - slowdown_);
  costs_.Learn(size, seconds / slowdown_);
}

void BatchPolicy::NotePreempted(bool was_preempted) {
  shortage_ += kShortageWeight * ((was_preempted ? 1 : 0) - shortage_);
}

void BatchPolicy::EndedInParts(int number, const std::vector<Part>& parts, bool was_preempted) {
  NotePreempted(was_preempted);
  Release(number);
  for (const Part& part : parts) {
    if (part.seconds > 0) LearnBeside(part.size, part.seconds);
  }
}

void BatchPolicy::Dropped(int number) { Release(number); }

void BatchPolicy::Release(int number) {
  running_[number].is_running = false;
  --num_running_;
}

void BatchPolicy::Woke(double seconds) {
  wake_s_ += kWeight * (std::clamp(seconds, 0.0, kLongestWakeS) - wake_s_);
}

}  // namespace recsys
