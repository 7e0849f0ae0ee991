#ifndef RECSYS_BENCH_FIGURES_H_
#define RECSYS_BENCH_FIGURES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/lane.h"
#include "bench/measured.h"

namespace recsys::bench {

/// What one step of a search showed.
enum class Verdict { kOk, kSlow, kFailed, kBehind, kLate };
/// As in JSON, and for people.
const char* NameOf(Verdict verdict);
const char* TextOf(Verdict verdict);

/// One measurement, ready to be read; serve/bench/figures.py has the same fields.
struct Figures {
  double asked_per_s = 0;
  int num_in_flight = 0;
  double duration_s = 0;
  double requests_per_s = 0;
  double rows_per_s = 0;
  std::optional<double> p99_ms;
  /// Of the requests that were sent late, and what is late.
  double late_share = 0;
  double late_ms = 0;
  bool is_valid = true;
  std::vector<std::string> warnings;
  std::vector<double> generator_cpu_shares;
  std::vector<std::string> kind_names;
  Measured measured;

  /// Why the numbers are not valid; empty if they are.
  std::string late_text() const;
  Json ToJson() const;
};

/// What the sending process took of the machine.
struct Effort {
  double cpu_share = 0;
  int num_threads = 1;
};

Figures FiguresOf(Measured measured, const Step& step, const Effort& effort,
                  std::vector<std::string> kind_names);

/// Whether a rate was answered within a bound.
Verdict VerdictOf(const Figures& made, double p99_ms);

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_FIGURES_H_
