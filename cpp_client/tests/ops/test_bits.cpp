// Bits of kernels: those of whole numbers are the same on every instruction set, those of float32
// on every one that multiplies and adds with one rounding.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "ops/kernels/kernels.h"
#include "tests/ops/layer.h"

namespace recsys::ops {
namespace {

constexpr std::int64_t kRows[] = {1, 2, 5, 13, 48, 49};
constexpr std::int64_t kShapes[][2] = {{1, 1}, {5, 13}, {16, 8}, {33, 17}, {70, 48}, {129, 65}};

class EachIsaHasBits : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    ForceIsa(NameOf(GetParam()));
  }
  void TearDown() override { ForceIsa(NameOf(BestIsa())); }
};

INSTANTIATE_TEST_SUITE_P(Isas, EachIsaHasBits, testing::ValuesIn(KnownIsas()),
                         [](const auto& given) { return NameOf(given.param); });

std::vector<std::uint32_t> Bits(const Floats& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), 4 * values.size());
  return bits;
}

Floats Linear(const Kernels& kernels, const Packed& packed, const Floats& in,
              std::int64_t num_rows) {
  Floats out(static_cast<std::size_t>(num_rows * packed.num_outputs));
  kernels.linear(packed, {in.data(), packed.num_inputs}, num_rows, Activation::kRelu,
                 {out.data(), packed.num_outputs}, nullptr);
  return out;
}

TEST_P(EachIsaHasBits, WholeNumbersGiveThoseOfPlainLoops) {
  std::mt19937 random(1);
  for (const auto& [num_outputs, num_inputs] : kShapes) {
    const Floats weight = Random(static_cast<std::size_t>(num_outputs * num_inputs), &random);
    const Floats bias = Random(static_cast<std::size_t>(num_outputs), &random);
    const Layer bytes(weight, &bias, num_outputs, num_inputs, WeightType::kInt8);
    const Layer words(weight, &bias, num_outputs, num_inputs, WeightType::kInt16);
    ASSERT_EQ(bytes.error + words.error, "");
    EXPECT_EQ(
        PackFor(GetParam(), weight.data(), bias.data(), num_outputs, num_inputs, WeightType::kInt8),
        Pack(weight.data(), bias.data(), num_outputs, num_inputs,
             GetParam() == Isa::kAvx2 ? WeightType::kInt16 : WeightType::kInt8));
    for (const std::int64_t num_rows : kRows) {
      for (const float low : {-1.0F, 0.0F}) {
        const Floats in = Random(static_cast<std::size_t>(num_rows * num_inputs), &random, low);
        const auto expected = Bits(Linear(PlainKernels(), bytes.packed, in, num_rows));
        ASSERT_EQ(Bits(Linear(ChosenKernels(), bytes.packed, in, num_rows)), expected)
            << num_outputs << " x " << num_inputs << ", " << num_rows << " rows";
        ASSERT_EQ(Bits(Linear(ChosenKernels(), words.packed, in, num_rows)), expected)
            << num_outputs << " x " << num_inputs << ", " << num_rows << " rows";
      }
    }
  }
}

TEST_P(EachIsaHasBits, TheLargestWholeNumbersDoNotSaturate) {
  const std::int64_t num_outputs = 33, num_inputs = 1030;
  for (const float sign : {1.0F, -1.0F}) {
    const Floats weight(num_outputs * num_inputs, sign);
    const Floats in(2 * num_inputs, 1.0F);
    for (const auto type : {WeightType::kInt8, WeightType::kInt16}) {
      const Layer layer(weight, nullptr, num_outputs, num_inputs, type);
      Floats out(2 * num_outputs);
      ChosenKernels().linear(layer.packed, {in.data(), num_inputs}, 2, Activation::kNone,
                             {out.data(), num_outputs}, nullptr);
      for (const float value : out) ASSERT_NEAR(value, sign * num_inputs, 1e-3F * num_inputs);
    }
  }
}

TEST_P(EachIsaHasBits, Float32LayersAddInOrder) {
  if (GetParam() == Isa::kPlain) GTEST_SKIP() << "plain loops round products too";
  std::mt19937 random(2);
  for (const auto& [num_outputs, num_inputs] : kShapes) {
    const Floats weight = Random(static_cast<std::size_t>(num_outputs * num_inputs), &random);
    const Floats bias = Random(static_cast<std::size_t>(num_outputs), &random);
    const Layer layer(weight, &bias, num_outputs, num_inputs, WeightType::kFloat32);
    for (const std::int64_t num_rows : kRows) {
      const Floats in = Random(static_cast<std::size_t>(num_rows * num_inputs), &random);
      Floats expected;
      for (std::int64_t row = 0; row < num_rows; ++row) {
        for (std::int64_t n = 0; n < num_outputs; ++n) {
          float sum = 0;
          for (std::int64_t k = 0; k < num_inputs; ++k) {
            sum = std::fma(in[static_cast<std::size_t>(row * num_inputs + k)],
                           weight[static_cast<std::size_t>(n * num_inputs + k)], sum);
          }
          sum += bias[static_cast<std::size_t>(n)];
          expected.push_back(sum < 0 ? 0 : sum);
        }
      }
      ASSERT_EQ(Bits(Linear(ChosenKernels(), layer.packed, in, num_rows)), Bits(expected))
          << num_outputs << " x " << num_inputs << ", " << num_rows << " rows";
    }
  }
}

TEST_P(EachIsaHasBits, ZerosKeepTheirSign) {
  const Layer layer(Floats(20, 0.0F), nullptr, 20, 1, WeightType::kFloat32);
  Floats bias(20, -0.0F);
  Packed packed = layer.packed;
  const std::vector<float> biases(32, -0.0F);
  packed.bias = biases.data();
  const Floats in(1, -1.0F);
  const Floats out = Linear(ChosenKernels(), packed, in, 1);
  EXPECT_EQ(Bits(out), Bits(Linear(PlainKernels(), packed, in, 1)));
}

TEST_P(EachIsaHasBits, ProductsOfPairsAddInOrder) {
  if (GetParam() == Isa::kPlain) GTEST_SKIP() << "plain loops round products too";
  std::mt19937 random(3);
  for (const auto& [num_vectors, dim] : {VectorsShape{3, 5}, {17, 16}, {27, 33}}) {
    const std::int64_t num_pairs = num_vectors * (num_vectors - 1) / 2;
    for (const std::int64_t num_rows : kRows) {
      const Floats in = Random(static_cast<std::size_t>(num_rows * num_vectors * dim), &random);
      Floats out(static_cast<std::size_t>(num_rows * num_pairs)), expected;
      ChosenKernels().dot(WeightType::kFloat32, {in.data(), num_vectors * dim}, num_rows,
                          {num_vectors, dim}, {out.data(), num_pairs});
      for (std::int64_t row = 0; row < num_rows; ++row) {
        const float* const vectors = in.data() + row * num_vectors * dim;
        for (std::int64_t i = 0; i < num_vectors; ++i) {
          for (std::int64_t j = i + 1; j < num_vectors; ++j) {
            float sum = 0;
            for (std::int64_t k = 0; k < dim; ++k) {
              sum = std::fma(vectors[i * dim + k], vectors[j * dim + k], sum);
            }
            expected.push_back(sum);
          }
        }
      }
      ASSERT_EQ(Bits(out), Bits(expected)) << num_vectors << " x " << dim;
    }
  }
}

/// What elementwise steps compute of a row.
Floats Computed(const Kernels& kernels, ElementwiseKind kind, const Floats& a, const Floats& b) {
  const auto width = static_cast<std::int64_t>(a.size());
  Elementwise step;
  step.kind = kind;
  step.a = step.c = {a.data(), width};
  step.b = {b.data(), width};
  step.num_rows = 1;
  step.width = width;
  step.factor = 0.25F;
  if (kind == ElementwiseKind::kSum || kind == ElementwiseKind::kNorm) {
    step.width = 1;
    step.count = width;
  }
  Floats out(static_cast<std::size_t>(step.width));
  kernels.elementwise(step, {out.data(), step.width});
  return out;
}

TEST_P(EachIsaHasBits, StepsOverNumbersAreThoseOfPlainLoops) {
  std::mt19937 random(4);
  for (std::int64_t kind = 0; kind < kNumElementwiseKind; ++kind) {
    for (const std::size_t width : {1U, 7U, 16U, 67U}) {
      const Floats a = Random(width, &random), b = Random(width, &random);
      const auto of = static_cast<ElementwiseKind>(kind);
      ASSERT_EQ(Bits(Computed(ChosenKernels(), of, a, b)), Bits(Computed(PlainKernels(), of, a, b)))
          << kind << ", " << width;
    }
  }
}

}  // namespace
}  // namespace recsys::ops
