#ifndef RECSYS_BENCH_IDS_H_
#define RECSYS_BENCH_IDS_H_

#include <cstdint>

#include "bench/mixes.h"

namespace recsys::bench {

/// IDs from 0 to num_rows - 1: uniform, or few that are asked for often. By Zipf's law with the
/// exponent s the row of rank k (1 to N) is asked for with a probability proportional to k to the
/// power of -s; ranks lie scattered over the table, the same in every run, where recsys-bench puts
/// them too. No table of N probabilities is made.
///
/// Rejection-inversion after W. Hoermann and G. Derflinger, "Rejection-inversion to generate
/// variates from monotone discrete distributions", ACM TOMACS 6 (1996).
class IdDraw {
 public:
  /// Of at most 2^31 rows; an exponent of 0 is uniform.
  IdDraw(std::int64_t num_rows, double exponent);
  std::int64_t Draw(Generator& generator) const;

 private:
  std::int64_t Rank(Generator& generator) const;
  double Area(double x) const;
  double Inverse(double area) const;

  std::int64_t num_rows_;
  double exponent_;
  std::int64_t multiplier_ = 1;
  double start_ = 0;
  double end_ = 0;
  double safe_ = 0;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_IDS_H_
