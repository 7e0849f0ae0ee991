#ifndef RECSYS_BENCH_SEARCH_H_
#define RECSYS_BENCH_SEARCH_H_

#include <functional>
#include <optional>

#include "bench/figures.h"

namespace recsys::bench {

/// What a search came to.
struct Found {
  /// The highest rate that passed, and the lowest that did not; none if there was none.
  std::optional<double> rate_per_s;
  std::optional<double> failing_per_s;
  /// Why that one failed.
  std::optional<Verdict> limit;
  /// Whether both were looked at often enough, and lie as near as was asked for.
  bool is_settled = false;
};

/// The highest rate that passes. The rate is doubled (or halved) until one passes and one fails;
/// then the gap is halved until it is narrower than `precision`. The border is noise's home: both
/// of its sides are measured again, up to three times, and the majority counts. At most 40
/// measurements (serve/bench/search.py).
Found FindRate(const std::function<Verdict(double)>& measure, double first_per_s, double precision);

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_SEARCH_H_
