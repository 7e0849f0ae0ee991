// Steps that take numbers one by one: included after linear_kernel.h. Plain loops, which the
// compiler makes vectors of.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/scratch.h"

namespace recsys::ops {
namespace {

/// Calls `compute(out, a, b, c)` for each row.
template <typename Compute>
void EachRow(const Elementwise& step, OutRows out, const Compute& compute) {
  for (std::int64_t row = 0; row < step.num_rows; ++row) {
    compute(out.data + row * out.stride, step.a.data + row * step.a.stride,
            step.b.data + row * step.b.stride, step.c.data + row * step.c.stride);
  }
}

/// Computes out[i] = combine(a[i / count], b[i]).
template <typename Combine>
void Combined(const Elementwise& step, OutRows out, const Combine& combine) {
  EachRow(step, out, [&](float* to, const float* a, const float* b, const float*) {
    for (std::int64_t i = 0; i < step.width; i += step.count, ++a) {
      const std::int64_t end = std::min(i + step.count, step.width);
      if (step.count == 1) {
        for (std::int64_t k = 0; k < step.width; ++k) to[k] = combine(a[k], b[k]);
        return;
      }
      for (std::int64_t k = i; k < end; ++k) to[k] = combine(*a, b[k]);
    }
  });
}

/// Returns the sum of `count` terms, in lanes that the compiler makes a vector of.
template <typename Term>
float Total(std::int64_t count, const Term& term) {
  float lanes[kLane] = {};
  std::int64_t i = 0;
  for (; i + kLane <= count; i += kLane) {
    for (std::int64_t lane = 0; lane < kLane; ++lane) lanes[lane] += term(i + lane);
  }
  if (i < count) {
    float last[kLane] = {};
    for (std::int64_t lane = 0; i < count; ++i, ++lane) last[lane] = term(i);
    for (std::int64_t lane = 0; lane < kLane; ++lane) lanes[lane] += last[lane];
  }
  for (std::int64_t half = kLane / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

/// Combines the lanes of each of `count` vectors, at most 16: writes number r of vector r's.
template <typename Combine>
void AcrossLanes(const float* vectors, std::int64_t count, const Combine& combine, float* to) {
  float turned[kLane * kLane];
  Lanes::Transpose(vectors, kLane, count, turned, kLane);
  Lanes::Floats lanes[kLane];
#pragma GCC unroll 16
  for (std::int64_t lane = 0; lane < kLane; ++lane) {
    lanes[lane] = Lanes::Load(turned + lane * kLane);
  }
  // In the order of Total.
#pragma GCC unroll 4
  for (std::int64_t half = kLane / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (std::int64_t lane = 0; lane < half; ++lane) {
      lanes[lane] = combine(lanes[lane], lanes[lane + half]);
    }
  }
  Lanes::Store(to, lanes[0]);
}

/// Some runs of numbers, of one length and of any rows, side by side. Each is padded to whole
/// vectors.
class Runs {
 public:
  /// A row is one run or several.
  Runs(const Elementwise& step, OutRows out, std::int64_t length)
      : step_(step),
        out_(out),
        length_(length),
        padded_((length + kLane - 1) / kLane * kLane),
        most_(std::clamp<std::int64_t>(kMostNumbers / padded_, 1, kLane)),
        // Padding is written a vector at a time.
        data_(reinterpret_cast<float*>(
            ScratchOf(Scratch::kRun, (most_ * padded_ + kLane) * std::int64_t{sizeof(float)}))) {}

  /// Reads the next ones. Returns how many; 0 behind the last.
  std::int64_t Read(float padding) {
    for (count_ = 0; count_ < most_ && row_ < step_.num_rows; ++count_) {
      to_[count_] = out_.data + row_ * out_.stride + column_;
      rows_[count_] = row_;
      float* const to = data_ + count_ * padded_;
      const float* const from = step_.a.data + row_ * step_.a.stride + column_;
      EachVector([&](std::int64_t at) { Lanes::Store(to + at, Lanes::Load(from + at)); },
                 [&](std::int64_t at) { to[at] = from[at]; });
      Lanes::Store(to + length_, Lanes::All(padding));
      column_ += length_;
      if (column_ < step_.width) continue;
      column_ = 0;
      ++row_;
    }
    return count_;
  }

  /// Writes the padding again.
  void Pad(float padding) {
    for (std::int64_t run = 0; run < count_ && padded_ != length_; ++run) {
      std::fill(data_ + run * padded_ + length_, data_ + (run + 1) * padded_, padding);
    }
  }

  /// Lets `of_number(number, a number of the run)` take the place of each number.
  template <typename OfNumber>
  void Change(const float* of_runs, const OfNumber& of_number) {
    for (std::int64_t run = 0; run < count_; ++run) {
      float* const at = data_ + run * padded_;
      const float of_run = of_runs[run];
      for (std::int64_t i = 0; i < padded_; ++i) at[i] = of_number(at[i], of_run);
    }
  }

  /// Combines what `of_numbers` returns of the numbers of each run, 16 at a time.
  template <typename OfNumbers, typename Combine>
  void Reduce(const OfNumbers& of_numbers, const Combine& combine, float* to) const {
    float lanes[kLane * kLane];
    for (std::int64_t run = 0; run < count_; ++run) {
      const float* const from = data_ + run * padded_;
      Lanes::Floats found = of_numbers(Lanes::Load(from));
      for (std::int64_t i = kLane; i < padded_; i += kLane) {
        found = combine(found, of_numbers(Lanes::Load(from + i)));
      }
      Lanes::Store(lanes + run * kLane, found);
    }
    AcrossLanes(lanes, count_, combine, to);
  }

  /// Writes each run times a factor.
  void WriteTimes(const float* factors) const {
    for (std::int64_t run = 0; run < count_; ++run) {
      const float* const from = data_ + run * padded_;
      float* const to = to_[run];
      const Lanes::Floats factor = Lanes::All(factors[run]);
      EachVector(
          [&](std::int64_t at) {
            Lanes::Store(to + at, Lanes::Times(Lanes::Load(from + at), factor));
          },
          [&](std::int64_t at) { to[at] = from[at] * factors[run]; });
    }
  }

  /// Where a run is written, and its row.
  float* to(std::int64_t run) const { return to_[run]; }
  std::int64_t row(std::int64_t run) const { return rows_[run]; }

 private:
  /// That stay in the nearest cache.
  static constexpr std::int64_t kMostNumbers = 1 << 12;

  /// Calls a function for vectors that hold all numbers of a run, the last two of which may
  /// overlap; or another one for each number.
  template <typename OfVector, typename OfNumber>
  void EachVector(const OfVector& of_vector, const OfNumber& of_number) const {
    if (length_ < kLane) {
      for (std::int64_t i = 0; i < length_; ++i) of_number(i);
      return;
    }
    for (std::int64_t i = 0; i + kLane <= length_; i += kLane) of_vector(i);
    if (padded_ != length_) of_vector(length_ - kLane);
  }

  const Elementwise& step_;
  const OutRows out_;
  const std::int64_t length_, padded_, most_;
  float* const data_;
  std::int64_t row_ = 0, column_ = 0, count_ = 0;
  float* to_[kLane] = {};
  std::int64_t rows_[kLane] = {};
};

inline Lanes::Floats Sum(Lanes::Floats a, Lanes::Floats b) { return Lanes::Add(a, b); }
inline Lanes::Floats Same(Lanes::Floats a) { return a; }

/// The shares of each of `count` runs of a row.
inline void Softmax(const Elementwise& step, bool or_zeros, OutRows out) {
  Runs runs(step, out, step.width / std::max<std::int64_t>(step.count, 1));
  // What is behind a run has no share.
  while (runs.Read(-std::numeric_limits<float>::infinity()) > 0) {
    float largest[kLane], factors[kLane];
    runs.Reduce(
        Same, [](auto a, auto b) { return Lanes::Max(a, b); }, largest);
    // All powers of a run of negative infinities are 0, and one of a run with NaN is NaN.
    for (float& one : largest) one = std::max(one, std::numeric_limits<float>::lowest());
    runs.Change(largest, [](float a, float most) { return Exp(a - most); });
    runs.Reduce(Same, Sum, factors);
    for (float& one : factors) one = or_zeros && one == 0 ? 0.0F : 1 / one;
    runs.WriteTimes(factors);
  }
}

inline void SumOf(const float* from, std::int64_t count, std::int64_t width, float* to) {
  if (width == 1) {
    *to = Total(count, [from](std::int64_t i) { return from[i]; });
    return;
  }
  std::copy_n(from, width, to);
  for (std::int64_t k = 1; k < count; ++k) {
    from += width;
    for (std::int64_t i = 0; i < width; ++i) to[i] += from[i];
  }
}

inline void Standardize(const float* from, std::int64_t width, float least, float* to) {
  const auto count = static_cast<float>(width);
  const float mean = Total(width, [from](std::int64_t i) { return from[i]; }) / count;
  const float variance = Total(width,
                               [from, mean](std::int64_t i) {
                                 const float off = from[i] - mean;
                                 return off * off;
                               }) /
                         count;
  const float scale = 1 / std::sqrt(variance + least);
  for (std::int64_t i = 0; i < width; ++i) to[i] = (from[i] - mean) * scale;
}

/// Standardizes each vector, and lets weights and biases follow.
inline void LayerNorm(const Elementwise& step, std::int64_t dim, OutRows out) {
  Runs runs(step, out, dim);
  const auto count = static_cast<float>(dim);
  while (const std::int64_t num_runs = runs.Read(0)) {
    float means[kLane], scales[kLane];
    runs.Reduce(Same, Sum, means);
    for (float& one : means) one /= count;
    runs.Change(means, [](float number, float mean) { return number - mean; });
    runs.Pad(0);
    runs.Reduce([](auto off) { return Lanes::Times(off, off); }, Sum, scales);
    for (float& one : scales) one = 1 / std::sqrt(one / count + step.factor);
    runs.WriteTimes(scales);
    for (std::int64_t run = 0; run < num_runs; ++run) {
      float* const to = runs.to(run);
      const float* const b = step.b.data + runs.row(run) * step.b.stride;
      const float* const c = step.c.data + runs.row(run) * step.c.stride;
      for (std::int64_t i = 0; i < dim; ++i) to[i] = to[i] * b[i] + c[i];
    }
  }
}

/// Takes `count` means away, each from as many numbers, and divides by the root of their variances.
inline void Normalize(const Elementwise& step, std::int64_t count, OutRows out) {
  const std::int64_t each = step.width / count;
  auto* const scales =
      reinterpret_cast<float*>(ScratchOf(Scratch::kScales, count * std::int64_t{sizeof(float)}));
  std::int64_t row = 0;
  EachRow(step, out, [&](float* to, const float* a, const float* b, const float* c) {
    // Those of weights are the same for every row.
    if (row++ == 0 || step.c.stride != 0) {
      for (std::int64_t i = 0; i < count; ++i) scales[i] = 1 / std::sqrt(c[i] + step.factor);
    }
    if (each == 1) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = (a[i] - b[i]) * scales[i];
      return;
    }
    for (std::int64_t i = 0; i < count; ++i, a += each, to += each) {
      for (std::int64_t k = 0; k < each; ++k) to[k] = (a[k] - b[i]) * scales[i];
    }
  });
}

/// Calls `reduce(from, count)` for each run of `count` numbers.
template <typename Reduce>
void EachRun(const Elementwise& step, OutRows out, const Reduce& reduce) {
  EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
    for (std::int64_t i = 0; i < step.width; ++i) to[i] = reduce(a + i * step.count, step.count);
  });
}

void Compute(const Elementwise& step, OutRows out) {
  const std::int64_t width = step.width;
  // Not read again where numbers are written.
  const float factor = step.factor;
  const auto each = [&](const auto& of_number) {
    EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
      for (std::int64_t i = 0; i < width; ++i) to[i] = of_number(a[i]);
    });
  };
  switch (step.kind) {
    case ElementwiseKind::kCopy:
      return each([](float a) { return a; });
    case ElementwiseKind::kRelu:
      // As torch: NaN stays.
      return each([](float a) { return a < 0 ? 0.0F : a; });
    case ElementwiseKind::kSigmoid:
      return each([](float a) { return Sigmoid(a); });
    case ElementwiseKind::kScale:
      return each([factor](float a) { return a * factor; });
    case ElementwiseKind::kAdd:
      return Combined(step, out, [](float a, float b) { return a + b; });
    case ElementwiseKind::kSubtract:
      return Combined(step, out, [](float a, float b) { return a - b; });
    case ElementwiseKind::kMultiply:
      return Combined(step, out, [](float a, float b) { return a * b; });
    case ElementwiseKind::kDivide:
      return Combined(step, out, [](float a, float b) { return b / a; });
    case ElementwiseKind::kMultiplyAdd:
      return EachRow(step, out, [&](float* to, const float* a, const float* b, const float* c) {
        for (std::int64_t i = 0; i < width; ++i) to[i] = a[i] * b[i] + c[i];
      });
    case ElementwiseKind::kSoftmax:
    case ElementwiseKind::kSoftmaxOrZeros:
      return Softmax(step, step.kind == ElementwiseKind::kSoftmaxOrZeros, out);
    case ElementwiseKind::kSum:
      return EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
        SumOf(a, step.count, width, to);
      });
    case ElementwiseKind::kNorm:
      return EachRun(step, out, [](const float* from, std::int64_t count) {
        return std::sqrt(Total(count, [from](std::int64_t i) { return from[i] * from[i]; }));
      });
    case ElementwiseKind::kTotal:
      return EachRun(step, out, [](const float* from, std::int64_t count) {
        return Total(count, [from](std::int64_t i) { return from[i]; });
      });
    case ElementwiseKind::kAtLeast:
      // As torch: NaN stays.
      return each([factor](float a) { return a < factor ? factor : a; });
    case ElementwiseKind::kStandardize:
      return EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
        Standardize(a, width, factor, to);
      });
    case ElementwiseKind::kLayerNorm:
      return LayerNorm(step, step.count, out);
    case ElementwiseKind::kNormalize:
      return Normalize(step, step.count, out);
    case ElementwiseKind::kTanh:
      return each([](float a) { return Tanh(a); });
    case ElementwiseKind::kGelu:
      return each([](float a) { return Gelu(a); });
    case ElementwiseKind::kGeluTanh:
      return each([](float a) { return GeluTanh(a); });
    case ElementwiseKind::kSilu:
      return each([](float a) { return a * Logistic(a); });
    case ElementwiseKind::kLeakyRelu:
      return each([factor](float a) { return a < 0 ? a * factor : a; });
    case ElementwiseKind::kElu:
      // e^a - 1, exact for small numbers too. As torch: NaN stays.
      return each([factor](float a) { return a > 0 ? a : Tanh(0.5F * a) * (Exp(a) + 1) * factor; });
    case ElementwiseKind::kShift:
      return each([factor](float a) { return a + factor; });
    case ElementwiseKind::kAtMost:
      return each([factor](float a) { return a > factor ? factor : a; });
    case ElementwiseKind::kExp:
      return each([](float a) { return Exp(a); });
    case ElementwiseKind::kLog2:
      return each([](float a) { return std::log2(a); });
    case ElementwiseKind::kTruncate:
      return each([](float a) { return std::trunc(a); });
    case ElementwiseKind::kAbsolute:
      return each([](float a) { return WithSign(a, 1.0F); });
    case ElementwiseKind::kLess:
    case ElementwiseKind::kLargest:
    case ElementwiseKind::kSelect:
      // By a form alone.
      return;
  }
}

}  // namespace
}  // namespace recsys::ops
