#ifndef RECSYS_ENGINE_CORE_QUEUE_POLICY_H_
#define RECSYS_ENGINE_CORE_QUEUE_POLICY_H_

// Decides how the waiting requests of one model version are run: in the polling thread, by a
// running executor, or by another one. Arithmetic only: no threads, no tensors, no clock of its
// own.

#include <array>
#include <cstdint>
#include <vector>

namespace recsys {

/// The size that a batch's duration depends on.
struct BatchSize {
  std::int64_t num_rows = 0;
  std::int64_t num_ids = 0;
};

/// Estimates how long the batches of one model take: fixed + per row + per ID, learned from past
/// batches.
///
/// A Kalman filter whose three costs drift slowly. So it forgets, stays determined if all batches
/// have the same size, and one duration moves it by at most three standard deviations: a preempted
/// thread does not spoil it.
class BatchCosts {
 public:
  BatchCosts();
  double SecondsOf(const BatchSize& size) const;
  /// Cost of a batch without any rows.
  double fixed_s() const { return costs_[0]; }
  /// Cost of a batch without any rows, but with so many IDs.
  double SecondsOfIds(std::int64_t num_ids) const { return SecondsOf({0, num_ids}); }
  void Learn(const BatchSize& size, double seconds);
  /// Whether enough batches ran to rely on the costs.
  bool is_known() const;

 private:
  static constexpr int kNum = 3;
  using Vector = std::array<double, kNum>;

  Vector costs_;
  /// How uncertain the costs are, and how their errors go together.
  std::array<Vector, kNum> covariance_{};
  int num_learned_ = 0;
};

/// What to do with the waiting requests.
enum class Act {
  /// Leave them to a running batch's executor: the next batch grows.
  kLeave,
  /// Run them at once in the calling (polling) thread.
  kRunHere,
  /// Wake a sleeping executor for them, as soon as a processor is available.
  kWake,
};

/// The policy of one model version. Not thread-safe. Times are seconds on the caller's clock.
class BatchPolicy {
 public:
  /// While a batch runs in the polling thread, no connection is read. So its expected duration must
  /// not exceed the first of these; or, up to the second, four times what waking an executor takes.
  /// And it runs there only if hardly any request is expected meanwhile: with an executor, the
  /// polling thread can collect the next batch.
  static constexpr double kShortS = 400e-6;
  static constexpr double kLongestHereS = 1e-3;

  /// The caller's state at the time of a decision.
  struct State {
    double now_s = 0;
    BatchSize waiting;
    /// Whether the caller may run a batch itself, and no batch of any model is running.
    bool may_run_here = false;
    /// Executors that may start in addition to the running ones.
    int num_free = 0;
    /// Whether a client with little to compute has come lately to others with much.
    bool has_light_client = false;
    /// For NumParts: those of the waiting IDs that are of the request's context, and whether it is
    /// computed once, before executors are woken for the rows; else each part computes it.
    std::int64_t num_context_ids = 0;
    bool shares_context = false;
  };

  /// Notes that so many requests have arrived.
  void Arrived(double now_s, std::int64_t num_requests = 1);
  /// Returns what to do with requests that have just arrived.
  Act Decide(const State& state) const;
  /// Whether an executor that has finished its batch takes the waiting requests, instead of leaving
  /// them to the other running executors.
  bool GoesOn(const State& state) const;
  /// Returns at most how many of the waiting rows the next batch takes, so that free executors get
  /// a share: one each, as long as a share is much more work than starting its executor. And so
  /// that it is over before long if there is a light client, which waits for the batches that run.
  std::int64_t ShareOf(const State& state) const;
  /// Returns into how many parts the rows of one request are cut, of which the caller computes one
  /// and each of `state.num_free` executors at most another one; `state.waiting` is the request.
  /// 1 unless it takes half a millisecond and that answers sooner by more than a fifth.
  int NumParts(const State& state) const;
  /// Returns when the running batches should be over; if they are not, the requests left to them
  /// should be looked at again.
  double LooksAgainS(double now_s) const;

  /// Whether a batch is short enough to delay a polling thread that has much to read.
  bool IsShort(const BatchSize& size) const;

  /// Notes that a batch begins; `num_beside` batches of any model are already running. Returns a
  /// number for Ended.
  int Began(const BatchSize& size, double now_s, int num_beside);
  /// `was_preempted`: another thread took the processor meanwhile.
  void Ended(int number, double now_s, int num_beside, bool was_preempted = false);
  /// One part of a batch, and how long it has taken.
  struct Part {
    BatchSize size;
    double seconds = 0;
  };
  /// Notes the end of a batch of which several executors may have computed parts.
  void EndedInParts(int number, const std::vector<Part>& parts, bool was_preempted);
  /// Notes that there was nothing to run in the batch: all its requests had expired.
  void Dropped(int number);
  /// Notes how long an executor took to wake up.
  void Woke(double seconds);
  int num_running() const { return num_running_; }

  BatchCosts& costs() { return costs_; }
  const BatchCosts& costs() const { return costs_; }
  /// How many times longer a batch takes while others run.
  double slowdown() const { return slowdown_; }
  /// Share of batches that lost their processor to another thread: if it is large, processors are
  /// the bottleneck, and more executors would only add the costs of smaller batches.
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

  void Release(int number);
  void NotePreempted(bool was_preempted);
  /// Learns from a batch that ran beside others.
  void LearnBeside(const BatchSize& size, double seconds);
  /// Minimum duration of the work that another executor takes over; it is woken for it, and its
  /// batch takes `empty_s` without it.
  double WorthwhileS(double empty_s) const;
  /// How many executors share the waiting requests, which take so long.
  double NumShares(const State& state, double work_s) const;
  bool IsForHere(const State& state) const;
  /// Current rate of requests per second.
  double RateAt(double now_s) const;
  /// Time until the first of the running batches ends.
  double RemainingS(double now_s) const;
  /// Whether another executor, which takes `wake_s` to start, computes the waiting requests sooner.
  bool Pays(const State& state, double wake_s) const;

  BatchCosts costs_;
  /// Reused by number; at most as many as batches have run concurrently.
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
