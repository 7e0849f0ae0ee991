#include "engine/counters/histogram.h"

#include <algorithm>
#include <numeric>

namespace recsys {
namespace {

HistogramBounds Powers(double first, double factor, std::size_t size) {
  HistogramBounds bounds;
  bounds.size = size;
  for (std::size_t i = 0; i < size; ++i, first *= factor) bounds.values[i] = first;
  return bounds;
}

}  // namespace

const HistogramBounds kSecondsBounds = {17,
                                        {5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2,
                                         0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0}};
const HistogramBounds kRowsBounds = Powers(1.0, 2.0, 14);
const HistogramBounds kIdsBounds = Powers(16.0, 4.0, 10);

void Histogram::Add(double value) {
  const double* const begin = bounds_->values.data();
  const double* const end = begin + bounds_->size;
  ++counts_[static_cast<std::size_t>(std::lower_bound(begin, end, value) - begin)];
  sum_ += value;
}

void Histogram::Add(const Histogram& other) {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  sum_ += other.sum_;
}

std::int64_t Histogram::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

}  // namespace recsys
