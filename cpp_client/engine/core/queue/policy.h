#ifndef RECSYS_ENGINE_CORE_QUEUE_POLICY_H_
#define RECSYS_ENGINE_CORE_QUEUE_POLICY_H_

// How the waiting requests of one model version are run: in the polling thread, by an executor that
// is at work already, or by a further one. Arithmetic only: no threads, no tensors, no clock of its
// own.

#include <array>
#include <cstdint>
#include <vector>

namespace recsys {

/// What the duration of a batch depends on.
struct BatchSize {
  std::int64_t num_rows = 0;
  std::int64_t num_ids = 0;
};

/// How long the batches of one model take: fixed + per row + per ID, learned from those that ran.
///
/// A Kalman filter whose three costs drift slowly. So it forgets, stays determined where all
/// batches are of one size, and one duration moves it by three standard deviations at most: a
/// thread that was preempted does not spoil it.
class BatchCosts {
 public:
  BatchCosts();
  double SecondsOf(const BatchSize& size) const;
  /// What a batch costs before its first row.
  double fixed_s() const { return costs_[0]; }
  void Learn(const BatchSize& size, double seconds);
  /// Whether enough batches ran to rely on it.
  bool is_known() const;

 private:
  static constexpr int kNum = 3;
  using Vector = std::array<double, kNum>;

  Vector costs_;
  std::array<Vector, kNum> variance_{};
  int num_learned_ = 0;
};

/// What becomes of the requests that wait.
enum class Act {
  /// They wait for a batch that runs: the next one grows.
  kLeave,
  /// The calling (polling) thread runs them at once.
  kRunHere,
  /// An executor that sleeps is woken for them, as soon as there is a processor for it.
  kWake,
};

/// The policy of one model version. Not thread-safe. Times are seconds on the caller's clock.
class BatchPolicy {
 public:
  /// Nothing is read from any connection while a batch runs in the polling thread. So it is
  /// expected to take no longer than the first of these; up to the second where waking an executor
  /// would take a quarter of it. And it runs there only where hardly a request is expected
  /// meanwhile: an executor lets the polling thread collect the next batch.
  static constexpr double kShortS = 400e-6;
  static constexpr double kLongestHereS = 1e-3;

  /// What the caller knows at the moment of a decision.
  struct State {
    double now_s = 0;
    BatchSize waiting;
    /// Whether the caller may run a batch itself, and no batch of any model runs.
    bool may_run_here = false;
    /// Executors that may start beside those that run.
    int num_free = 0;
  };

  /// Notes that a request has come.
  void Arrived(double now_s);
  /// What becomes of requests that have just arrived.
  Act Decide(const State& state) const;
  /// Whether an executor that has ended its batch takes what waits, instead of leaving it to the
  /// others that run.
  bool GoesOn(const State& state) const;
  /// At most how many of the waiting rows the next batch takes, so that executors that are free
  /// have their share: each its own, as long as that is much more work than starting it.
  std::int64_t ShareOf(const State& state) const;
  /// When the running batches should be over, so that what was left to them should be looked at
  /// again where they are not.
  double LooksAgainS(double now_s) const;

  /// Notes that a batch begins; `num_beside` batches of any model run already. Returns a number for
  /// Ended.
  int Began(const BatchSize& size, double now_s, int num_beside);
  /// `was_preempted`: another thread took the processor away meanwhile.
  void Ended(int number, double now_s, int num_beside, bool was_preempted = false);
  /// Notes that there was nothing to run in it: all its requests had expired.
  void Dropped(int number);
  /// Notes how long an executor took to wake up.
  void Woke(double seconds);
  int num_running() const { return num_running_; }

  BatchCosts& costs() { return costs_; }
  const BatchCosts& costs() const { return costs_; }
  /// How many times longer a batch takes while others run.
  double slowdown() const { return slowdown_; }
  /// Share of batches that lost their processor to another thread: where it is large, processors
  /// are what is short, and further executors add nothing but the costs of smaller batches.
  double shortage() const { return shortage_; }
  double wake_s() const { return wake_s_; }

 private:
  struct Running {
    bool is_running = false;
    BatchSize size;
    double began_s = 0;
    double expected_s = 0;
    bool has_company = false;
  };

  /// What a batch must at least take, before it is worth a further executor.
  double WorthwhileS() const;
  bool IsForHere(const State& state) const;
  /// Requests per second lately.
  double RateAt(double now_s) const;
  /// Until the first of the running batches ends.
  double RemainingS(double now_s) const;
  /// Whether what waits is computed sooner by a further executor that takes `wake_s` to start.
  bool Pays(const State& state, double wake_s) const;

  BatchCosts costs_;
  /// Reused by number; at most as many as batches have run at a time.
  std::vector<Running> running_;
  int num_running_ = 0;
  double slowdown_ = 1;
  double shortage_ = 0;
  double wake_s_ = 50e-6;
  double rate_ = 0;
  double last_arrived_s_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_CORE_QUEUE_POLICY_H_
