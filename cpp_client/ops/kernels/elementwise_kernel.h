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

/// Returns the largest of `count` numbers, whole vectors; NaN where one is.
inline float Largest(const float* from, std::int64_t count) {
  // Without a branch: numbers in no order would make processors guess.
  const auto larger = [](float a, float b) {
    const int is_first = static_cast<int>(a >= b) | static_cast<int>(a != a);
    return is_first != 0 ? a : b;
  };
  float lanes[kLane];
  std::copy_n(from, kLane, lanes);
  for (std::int64_t i = kLane; i < count; i += kLane) {
    for (std::int64_t lane = 0; lane < kLane; ++lane) {
      lanes[lane] = larger(lanes[lane], from[i + lane]);
    }
  }
  for (std::int64_t half = kLane / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) {
      lanes[lane] = larger(lanes[lane], lanes[lane + half]);
    }
  }
  return lanes[0];
}

/// The shares of each of `count` runs of numbers.
inline void SoftmaxOf(const float* from, std::int64_t width, std::int64_t count, bool or_zeros,
                      float* to) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const std::int64_t length = width / std::max<std::int64_t>(count, 1);
  // Whole vectors: what is behind a run has no share.
  const std::int64_t padded = (length + kLane - 1) / kLane * kLane;
  auto* const run =
      reinterpret_cast<float*>(ScratchOf(Scratch::kRun, padded * std::int64_t{sizeof(float)}));
  for (const float* const end = from + width; from < end; from += length, to += length) {
    std::copy_n(from, length, run);
    std::fill(run + length, run + padded, kNone);
    const float largest = Largest(run, padded);
    if (or_zeros && largest == kNone) {
      std::fill_n(to, length, 0.0F);
      continue;
    }
    for (std::int64_t i = 0; i < padded; ++i) run[i] = Exp(run[i] - largest);
    const float sum = Total(padded, [run](std::int64_t i) { return run[i]; });
    for (std::int64_t i = 0; i < length; ++i) to[i] = run[i] / sum;
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
  EachRow(step, out, [&](float* to, const float* a, const float* b, const float* c) {
    for (std::int64_t at = 0; at < step.width; at += dim) {
      Standardize(a + at, dim, step.factor, to + at);
      for (std::int64_t i = 0; i < dim; ++i) to[at + i] = to[at + i] * b[i] + c[i];
    }
  });
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
      return each([&](float a) { return a * step.factor; });
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
      return EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
        SoftmaxOf(a, width, step.count, step.kind == ElementwiseKind::kSoftmaxOrZeros, to);
      });
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
      return each([&](float a) { return a < step.factor ? step.factor : a; });
    case ElementwiseKind::kStandardize:
      return EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
        Standardize(a, width, step.factor, to);
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
      return each([&](float a) { return a < 0 ? a * step.factor : a; });
    case ElementwiseKind::kElu:
      // e^a - 1, exact for small numbers too. As torch: NaN stays.
      return each([&](float a) { return a > 0 ? a : Tanh(0.5F * a) * (Exp(a) + 1) * step.factor; });
    case ElementwiseKind::kShift:
      return each([&](float a) { return a + step.factor; });
    case ElementwiseKind::kAtMost:
      return each([&](float a) { return a > step.factor ? step.factor : a; });
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
