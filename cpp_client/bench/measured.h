#ifndef RECSYS_BENCH_MEASURED_H_
#define RECSYS_BENCH_MEASURED_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/latencies.h"

namespace recsys::bench {

/// Used like a gRPC status code: the request became due while too many others were unanswered.
inline constexpr int kNotSent = -1;

/// Counts of one thread, or the sum of several. serve/bench/load/measured.py has the same fields.
struct Measured {
  struct Kind {
    Latencies latencies;
    std::int64_t num_failed = 0;
  };
  /// The failed requests of one status code, and the text of the first one.
  struct Failures {
    std::int64_t count = 0;
    std::string text;
  };

  /// Answered requests, measured from when they were due.
  Latencies latencies;
  /// Open loops only: the same measured from when they were sent, and how late they were sent.
  Latencies services;
  Latencies lags;
  std::map<int, Failures> errors;
  std::vector<Kind> kinds;
  Series series;
  /// Answers within the measured time, and their rows.
  std::int64_t num_in_time = 0;
  std::int64_t num_rows = 0;
  /// The share of a core used by each sending thread.
  std::vector<double> cpu_shares;
  /// When waiting for answers ended, by MonotonicSeconds().
  double ended_s = 0;

  void Merge(const Measured& other);
};

/// When a request was due, was sent, and ended.
struct Times {
  double due_s;
  double sent_s;
  double done_s;
};

/// Counts the requests of the measured time: those of an open loop by when they were due, those of
/// a closed loop by when they ended. Not thread-safe.
class Recorder {
 public:
  struct Window {
    double start_s = 0;
    double end_s = 0;
    bool by_due = false;
    /// 0 if all requests are of one kind.
    std::size_t num_kinds = 0;
  };

  explicit Recorder(const Window& window);
  void Answered(const Times& times, std::int32_t kind, std::int32_t num_rows);
  void Failed(const Times& times, std::int32_t kind, int code, const std::string& text);

  const Measured& measured() const { return measured_; }

 private:
  bool Counts(const Times& times) const;

  const Window window_;
  Measured measured_;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_MEASURED_H_
