#ifndef RECSYS_BENCH_MEASURED_H_
#define RECSYS_BENCH_MEASURED_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/latencies.h"
#include "recsys/client.h"

namespace recsys::bench {

/// The code of a request that became due while too many others were unanswered.
inline constexpr char kNotSent[] = "NOT_SENT";

/// Throughput and latency over time in bounded memory: intervals double when there are too many.
class Series {
 public:
  /// `at_s` after the start of the measured time; `latency_s` is negative where the request failed.
  void Add(double at_s, double latency_s);
  void Merge(const Series& other);
  Json Points(double duration_s) const;

 private:
  struct Interval {
    Latencies latencies;
    std::int64_t num_failed = 0;
  };
  void Widen();

  std::int64_t width_s_ = 1;
  std::vector<Interval> intervals_;
};

/// Counts of one thread, or of many.
struct Measured {
  struct Kind {
    Latencies latencies;
    std::int64_t num_failed = 0;
  };
  /// Of the answered requests, from when they should have been sent; from when they were; and how
  /// late that was.
  Latencies latencies;
  Latencies services;
  Latencies lags;
  /// Failed requests by code, and what the first of each said.
  std::map<std::string, std::int64_t> errors;
  std::map<std::string, std::string> texts;
  std::vector<Kind> kinds;
  Series series;
  /// Answers that came within the measured time, and rows of these.
  std::int64_t num_in_time = 0;
  std::int64_t num_rows = 0;

  std::int64_t num_answered() const { return latencies.count(); }
  std::int64_t num_failed() const;
  void Merge(const Measured& other);
};

/// When a request should have been sent, was, and ended.
struct Times {
  double due_s;
  double sent_s;
  double done_s;
};

/// Counts what belongs to the measured time: in an open loop by when a request was due, else by
/// when it ended. Belongs to one thread.
class Recorder {
 public:
  struct Window {
    double start_s = 0;
    double end_s = 0;
    bool by_due = false;
    /// 0 where all requests are alike.
    std::size_t num_kinds = 0;
  };

  explicit Recorder(const Window& window);
  void Answered(const Times& times, std::int32_t kind, std::int32_t num_rows);
  void Failed(const Times& times, std::int32_t kind, const char* code, const std::string& text);

  const Measured& measured() const { return measured_; }

 private:
  bool Counts(const Times& times) const;

  const Window window_;
  Measured measured_;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_MEASURED_H_
