// Steps that take numbers one by one: included after linear_kernel.h. Plain loops, which the
// compiler makes vectors of.

#include <algorithm>
#include <cmath>
#include <cstdint>

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

inline void SoftmaxOf(const float* from, std::int64_t width, float* to) {
  float largest = from[0], sum = 0;
  for (std::int64_t i = 1; i < width; ++i) largest = std::max(largest, from[i]);
  for (std::int64_t i = 0; i < width; ++i) sum += to[i] = std::exp(from[i] - largest);
  for (std::int64_t i = 0; i < width; ++i) to[i] /= sum;
}

/// Returns the sum of `count` terms, in lanes that the compiler makes a vector of.
template <typename Term>
float Total(std::int64_t count, const Term& term) {
  float lanes[kLane] = {};
  std::int64_t i = 0;
  for (; i + kLane <= count; i += kLane) {
    for (std::int64_t lane = 0; lane < kLane; ++lane) lanes[lane] += term(i + lane);
  }
  for (std::int64_t lane = 0; i < count; ++i, ++lane) lanes[lane] += term(i);
  for (std::int64_t half = kLane / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
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
      return EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
        SoftmaxOf(a, width, to);
      });
    case ElementwiseKind::kSum:
      return EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
        SumOf(a, step.count, width, to);
      });
    case ElementwiseKind::kNorm:
      return EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
        *to = std::sqrt(Total(step.count, [a](std::int64_t i) { return a[i] * a[i]; }));
      });
    case ElementwiseKind::kAtLeast:
      // As torch: NaN stays.
      return each([&](float a) { return a < step.factor ? step.factor : a; });
    case ElementwiseKind::kStandardize:
      return EachRow(step, out, [&](float* to, const float* a, const float*, const float*) {
        Standardize(a, width, step.factor, to);
      });
  }
}

}  // namespace
}  // namespace recsys::ops
