#include "bench/ids.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace recsys::bench {
namespace {

// It keeps the product of the scatter within 64 bits.
constexpr std::int64_t kMostRows = std::int64_t{1} << 31;
// The golden ratio's fraction: its multiples, modulo 1, lie as far apart as can be.
constexpr double kGolden = 0.6180339887498949;

double Expm1Ratio(double x) { return std::abs(x) > 1e-8 ? std::expm1(x) / x : 1 + x / 2; }
double Log1pRatio(double x) { return std::abs(x) > 1e-8 ? std::log1p(x) / x : 1 - x / 2; }

}  // namespace

IdDraw::IdDraw(std::int64_t num_rows, double exponent)
    : num_rows_(std::clamp<std::int64_t>(num_rows, 1, kMostRows)), exponent_(exponent) {
  if (exponent_ == 0) return;
  multiplier_ = std::max<std::int64_t>(
      static_cast<std::int64_t>(static_cast<double>(num_rows_) * kGolden), 1);
  while (std::gcd(multiplier_, num_rows_) != 1) ++multiplier_;
  // The area under the first bar starts where the bar's own weight, 1, is left of 1.5.
  start_ = Area(1.5) - 1;
  end_ = Area(static_cast<double>(num_rows_) + 0.5);
  // Draws this near to their rank from below are always within its bar.
  safe_ = 2 - Inverse(Area(2.5) - std::pow(2.0, -exponent_));
}

std::int64_t IdDraw::Draw(Generator& generator) const {
  if (exponent_ == 0) {
    return std::uniform_int_distribution<std::int64_t>(0, num_rows_ - 1)(generator);
  }
  return (Rank(generator) - 1) * multiplier_ % num_rows_;
}

std::int64_t IdDraw::Rank(Generator& generator) const {
  std::uniform_real_distribution<double> uniform(0, 1);
  for (;;) {
    const double area = end_ + uniform(generator) * (start_ - end_);
    const double point = Inverse(area);
    const double rank = std::clamp(std::floor(point + 0.5), 1.0, static_cast<double>(num_rows_));
    if (rank - point <= safe_ || area >= Area(rank + 0.5) - std::pow(rank, -exponent_)) {
      return static_cast<std::int64_t>(rank);
    }
  }
}

// The integral of x to the power of -s, up to a constant; near s = 1 it goes over into the
// logarithm.
double IdDraw::Area(double x) const {
  const double log_x = std::log(x);
  return log_x * Expm1Ratio((1 - exponent_) * log_x);
}

double IdDraw::Inverse(double area) const {
  const double scaled = std::max((1 - exponent_) * area, -1 + 1e-15);
  return std::exp(area * Log1pRatio(scaled));
}

}  // namespace recsys::bench
