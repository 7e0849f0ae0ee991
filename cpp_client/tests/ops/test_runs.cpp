// Steps over runs of numbers, of any length and number: against loops, in place, and with the same
// bits on every instruction set.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "ops/kernels/kernels.h"
#include "tests/ops/layer.h"

namespace recsys::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kLengths[] = {1, 2, 15, 16, 17, 50, 64, 130, 5000};
constexpr std::int64_t kCounts[] = {1, 3, 16, 17, 35};

class EachIsaRuns : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    ForceIsa(NameOf(GetParam()));
  }
  void TearDown() override { ForceIsa(NameOf(BestIsa())); }

  std::mt19937 random_{5};
};

INSTANTIATE_TEST_SUITE_P(Isas, EachIsaRuns, testing::ValuesIn(KnownIsas()),
                         [](const auto& given) { return NameOf(given.param); });

struct Norm {
  Floats weight, bias;
};

Floats Computed(const Kernels& kernels, ElementwiseKind kind, const Floats& in, std::int64_t count,
                const Norm& norm = {}) {
  Elementwise step;
  step.kind = kind;
  step.num_rows = 1;
  step.width = static_cast<std::int64_t>(in.size());
  step.count = kind == ElementwiseKind::kLayerNorm ? step.width / count : count;
  step.factor = 1e-5F;
  Floats out(in.size());
  step.a = step.b = step.c = {in.data(), step.width};
  if (!norm.weight.empty()) step.b = {norm.weight.data(), 0}, step.c = {norm.bias.data(), 0};
  kernels.elementwise(step, {out.data(), step.width});
  // Also to where it is read.
  Floats same = in;
  step.a = {same.data(), step.width};
  kernels.elementwise(step, {same.data(), step.width});
  EXPECT_EQ(0, std::memcmp(same.data(), out.data(), 4 * out.size()));
  return out;
}

TEST_P(EachIsaRuns, SharesAreThoseOfLoops) {
  for (const std::int64_t length : kLengths) {
    for (const std::int64_t count : kCounts) {
      const Floats in = Random(static_cast<std::size_t>(count * length), &random_, -9);
      for (const auto kind : {ElementwiseKind::kSoftmax, ElementwiseKind::kSoftmaxOrZeros}) {
        const Floats out = Computed(ChosenKernels(), kind, in, count);
        ASSERT_EQ(out, Computed(PlainKernels(), kind, in, count)) << length << " x " << count;
        for (std::int64_t run = 0; run < count; ++run) {
          const float* const from = in.data() + run * length;
          double sum = 0;
          for (std::int64_t i = 0; i < length; ++i) sum += std::exp(static_cast<double>(from[i]));
          for (std::int64_t i = 0; i < length; ++i) {
            const double share = std::exp(static_cast<double>(from[i])) / sum;
            ASSERT_NEAR(out[static_cast<std::size_t>(run * length + i)], share, 1e-6 * share);
          }
        }
      }
    }
  }
}

TEST_P(EachIsaRuns, ARunHasTheSameBitsBesideAnyOthers) {
  for (const std::int64_t length : kLengths) {
    const std::int64_t count = 19;
    const Floats in = Random(static_cast<std::size_t>(count * length), &random_, -1);
    const Norm norm{Random(static_cast<std::size_t>(length), &random_, -1),
                    Random(static_cast<std::size_t>(length), &random_, -1)};
    for (const auto kind : {ElementwiseKind::kSoftmax, ElementwiseKind::kLayerNorm}) {
      const Floats whole = Computed(ChosenKernels(), kind, in, count, norm);
      for (const std::int64_t run : {0, 7, 18}) {
        const Floats alone(in.begin() + run * length, in.begin() + (run + 1) * length);
        ASSERT_EQ(Computed(ChosenKernels(), kind, alone, 1, norm),
                  Floats(whole.begin() + run * length, whole.begin() + (run + 1) * length));
      }
    }
  }
}

TEST_P(EachIsaRuns, RunsOfSeveralRowsHaveTheBitsOfThoseInOne) {
  for (const std::int64_t length : kLengths) {
    const std::int64_t count = 2, num_rows = 19, stride = count * length + 5;
    const Floats in = Random(static_cast<std::size_t>(num_rows * count * length), &random_, -1);
    const Norm norm{Random(static_cast<std::size_t>(length), &random_, -1),
                    Random(static_cast<std::size_t>(length), &random_, -1)};
    for (const auto kind : {ElementwiseKind::kSoftmax, ElementwiseKind::kLayerNorm}) {
      const Floats expected = Computed(ChosenKernels(), kind, in, num_rows * count, norm);
      Floats rows(static_cast<std::size_t>(num_rows * stride), 7);
      for (std::int64_t row = 0; row < num_rows; ++row) {
        std::copy_n(in.begin() + row * count * length, count * length, rows.begin() + row * stride);
      }
      Elementwise step;
      step.kind = kind;
      step.num_rows = num_rows;
      step.width = count * length;
      step.count = kind == ElementwiseKind::kLayerNorm ? length : count;
      step.factor = 1e-5F;
      step.a = {rows.data(), stride};
      step.b = {norm.weight.data(), 0};
      step.c = {norm.bias.data(), 0};
      ChosenKernels().elementwise(step, {rows.data(), stride});
      for (std::int64_t row = 0; row < num_rows; ++row) {
        const auto found = rows.begin() + row * stride;
        ASSERT_EQ(Floats(found, found + count * length),
                  Floats(expected.begin() + row * count * length,
                         expected.begin() + (row + 1) * count * length));
        ASSERT_EQ(Floats(found + count * length, found + stride), Floats(5, 7));
      }
    }
  }
}

TEST_P(EachIsaRuns, OddNumbersStayInTheirRun) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t length = 21;
  Floats in = Random(5 * length, &random_, -1);
  in[3] = nan;
  std::fill_n(in.begin() + length, length, -kInfinity);
  in[2 * length + 4] = kInfinity;
  std::fill_n(in.begin() + 3 * length, length, -kInfinity);
  in[3 * length + 20] = nan;
  for (const bool or_zeros : {false, true}) {
    const Floats out =
        Computed(ChosenKernels(),
                 or_zeros ? ElementwiseKind::kSoftmaxOrZeros : ElementwiseKind::kSoftmax, in, 5);
    const auto at = [&](std::int64_t run, std::int64_t i) {
      return out[static_cast<std::size_t>(run * length + i)];
    };
    for (std::int64_t i = 0; i < length; ++i) {
      EXPECT_TRUE(std::isnan(at(0, i)) && std::isnan(at(3, i)));
      if (or_zeros) {
        EXPECT_EQ(at(1, i), 0);
      } else {
        EXPECT_TRUE(std::isnan(at(1, i)));
      }
      EXPECT_TRUE(std::isfinite(at(4, i)));
    }
    EXPECT_TRUE(std::isnan(at(2, 4)));
  }
}

TEST_P(EachIsaRuns, NormsAreThoseOfLoops) {
  for (const std::int64_t length : kLengths) {
    for (const std::int64_t count : kCounts) {
      const Floats in = Random(static_cast<std::size_t>(count * length), &random_, -1);
      const Norm norm{Random(static_cast<std::size_t>(length), &random_, -1),
                      Random(static_cast<std::size_t>(length), &random_, -1)};
      const Floats out = Computed(ChosenKernels(), ElementwiseKind::kLayerNorm, in, count, norm);
      ASSERT_EQ(out, Computed(PlainKernels(), ElementwiseKind::kLayerNorm, in, count, norm))
          << length << " x " << count;
      for (std::int64_t run = 0; run < count; ++run) {
        const float* const from = in.data() + run * length;
        double mean = 0, variance = 0;
        for (std::int64_t i = 0; i < length; ++i) mean += from[i];
        mean /= static_cast<double>(length);
        for (std::int64_t i = 0; i < length; ++i) variance += (from[i] - mean) * (from[i] - mean);
        const double scale = 1 / std::sqrt(variance / static_cast<double>(length) + 1e-5);
        for (std::int64_t i = 0; i < length; ++i) {
          const auto k = static_cast<std::size_t>(i);
          const double expected = (from[i] - mean) * scale * norm.weight[k] + norm.bias[k];
          ASSERT_NEAR(out[static_cast<std::size_t>(run * length + i)], expected, 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace recsys::ops
