// Kernels of every instruction set that this processor has, at odd sizes, against loops in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "ops/kernels/kernels.h"
#include "tests/ops/layer.h"

namespace recsys::ops {
namespace {

constexpr WeightType kTypes[] = {WeightType::kFloat32, WeightType::kBfloat16, WeightType::kInt8,
                                 WeightType::kInt16};

class EachIsa : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!HasIsa(GetParam())) GTEST_SKIP() << "this processor has no " << NameOf(GetParam());
    ForceIsa(NameOf(GetParam()));
  }
  void TearDown() override { ForceIsa(NameOf(BestIsa())); }

  /// Rows of the layer's outputs, without what lies between them.
  static Floats Outputs(const Packed& packed, const Floats& in, std::int64_t num_rows,
                        std::int64_t stride, Activation activation) {
    const std::int64_t out_stride = packed.num_outputs + 3;
    // The exact size: the address sanitizer sees what is written behind it.
    Floats out(static_cast<std::size_t>(
        num_rows == 0 ? 0 : (num_rows - 1) * out_stride + packed.num_outputs));
    ChosenKernels().linear(packed, {in.data(), stride}, num_rows, activation,
                           {out.data(), out_stride}, nullptr);
    Floats rows;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      const auto first = out.begin() + row * out_stride;
      rows.insert(rows.end(), first, first + packed.num_outputs);
    }
    return rows;
  }
};

INSTANTIATE_TEST_SUITE_P(Isas, EachIsa, testing::ValuesIn(KnownIsas()),
                         [](const auto& given) { return NameOf(given.param); });

double Activated(double value, Activation activation) {
  if (activation == Activation::kRelu) return std::max(value, 0.0);
  return activation == Activation::kSigmoid ? 1 / (1 + std::exp(-value)) : value;
}

/// Rounding of a product of K numbers up to 1 in absolute value, each rounded to the type.
double ToleranceOf(WeightType type, std::int64_t num_inputs) {
  const double step = type == WeightType::kFloat32    ? 0x1p-23
                      : type == WeightType::kBfloat16 ? 0x1p-8
                                                      : 1.0 / 127;
  return 1e-6 + 2 * step * std::sqrt(static_cast<double>(num_inputs)) * 1.5;
}

TEST_P(EachIsa, LinearLayersAreRight) {
  std::mt19937 random(1);
  const std::pair<std::int64_t, std::int64_t> shapes[] = {
      {1, 1}, {1, 256}, {5, 13}, {16, 7}, {31, 33}, {32, 64}, {33, 17}, {70, 48}, {129, 5}};
  for (const auto type : kTypes) {
    for (const auto& [num_outputs, num_inputs] : shapes) {
      const Floats weight = Random(static_cast<std::size_t>(num_outputs * num_inputs), &random);
      const Floats bias = Random(static_cast<std::size_t>(num_outputs), &random);
      for (const bool has_bias : {true, false}) {
        const Layer layer(weight, has_bias ? &bias : nullptr, num_outputs, num_inputs, type);
        ASSERT_EQ(layer.error, "");
        for (const std::int64_t num_rows : {0, 1, 2, 5, 13, 48, 49}) {
          const auto activation = static_cast<Activation>(num_rows % 3);
          const std::int64_t stride = num_inputs + num_rows % 2;
          // Inputs that are never negative are rounded to 255 steps.
          const Floats in =
              Random(static_cast<std::size_t>(num_rows * stride), &random, num_rows == 5 ? 0 : -1);
          const Floats out = Outputs(layer.packed, in, num_rows, stride, activation);
          for (std::int64_t row = 0; row < num_rows; ++row) {
            for (std::int64_t n = 0; n < num_outputs; ++n) {
              double sum = has_bias ? bias[static_cast<std::size_t>(n)] : 0;
              for (std::int64_t k = 0; k < num_inputs; ++k) {
                sum += double{in[static_cast<std::size_t>(row * stride + k)]} *
                       weight[static_cast<std::size_t>(n * num_inputs + k)];
              }
              ASSERT_NEAR(out[static_cast<std::size_t>(row * num_outputs + n)],
                          Activated(sum, activation), ToleranceOf(type, num_inputs))
                  << num_outputs << " x " << num_inputs << ", row " << row << " of " << num_rows;
            }
          }
        }
      }
    }
  }
}

TEST_P(EachIsa, ARowHasTheSameBitsAloneAndInABatch) {
  std::mt19937 random(2);
  constexpr std::int64_t kRows = 49;
  // The weights of the second one are more than what a cache that is near holds, in every type.
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{200, 61}, {529, 2030}};
  for (const auto& [num_outputs, num_inputs] : shapes) {
    const Floats weight = Random(static_cast<std::size_t>(num_outputs * num_inputs), &random);
    const Floats bias = Random(static_cast<std::size_t>(num_outputs), &random);
    Floats in = Random(static_cast<std::size_t>(kRows * num_inputs), &random);
    // Histories of many lengths, and one in the middle of zeros: of the last row nothing is left.
    for (std::int64_t row = 0; row < kRows; ++row) {
      float* const at = in.data() + row * num_inputs;
      std::fill(at + num_inputs - num_inputs * row / (kRows - 1), at + num_inputs, 0.0F);
      if (row % 3 == 0) std::fill(at, at + num_inputs / 5, 0.0F);
    }
    for (const auto type : kTypes) {
      const Layer layer(weight, &bias, num_outputs, num_inputs, type);
      const auto outputs = [&, inputs = num_inputs](std::int64_t first, std::int64_t end) {
        const Floats rows(in.begin() + first * inputs, in.begin() + end * inputs);
        return Outputs(layer.packed, rows, end - first, inputs, Activation::kRelu);
      };
      Floats alone;
      for (std::int64_t row = 0; row < kRows; ++row) {
        const Floats one = outputs(row, row + 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
      for (const std::int64_t count : {std::int64_t{2}, std::int64_t{5}, std::int64_t{13}, kRows}) {
        const Floats some = outputs(0, count);
        EXPECT_EQ(std::memcmp(some.data(), alone.data(), some.size() * sizeof(float)), 0)
            << num_outputs << " x " << num_inputs << ", " << count << " rows";
      }
    }
  }
}

TEST_P(EachIsa, NumbersThatAreNoneStayInTheirRow) {
  std::mt19937 random(3);
  const std::int64_t num_outputs = 40, num_inputs = 20;
  const Floats weight = Random(num_outputs * num_inputs, &random);
  const float none[] = {std::numeric_limits<float>::quiet_NaN(),
                        std::numeric_limits<float>::infinity()};
  for (const auto type : kTypes) {
    const Layer layer(weight, nullptr, num_outputs, num_inputs, type);
    for (const float value : none) {
      Floats in = Random(3 * num_inputs, &random);
      const Floats before = Outputs(layer.packed, in, 3, num_inputs, Activation::kNone);
      in[num_inputs + 7] = value;
      const Floats after = Outputs(layer.packed, in, 3, num_inputs, Activation::kNone);
      for (std::int64_t i = 0; i < 3 * num_outputs; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (i / num_outputs == 1) {
          EXPECT_FALSE(std::isfinite(after[at]));
        } else {
          EXPECT_EQ(after[at], before[at]);
        }
      }
      const Floats relu = Outputs(layer.packed, in, 3, num_inputs, Activation::kRelu);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(relu[num_outputs]));
      }
    }
    const Floats zeros(num_inputs, 0.0F);
    for (const float out : Outputs(layer.packed, zeros, 1, num_inputs, Activation::kNone)) {
      EXPECT_EQ(out, 0.0F);
    }
  }
}

TEST_P(EachIsa, Bfloat16IsFloat32WhereNoInstructionMultipliesItFaster) {
  std::mt19937 random(6);
  const std::int64_t num_outputs = 70, num_inputs = 33, num_rows = 5;
  const Floats weight = Random(num_outputs * num_inputs, &random);
  const Floats bias = Random(num_outputs, &random), in = Random(num_rows * num_inputs, &random);
  Floats rounded = weight;
  for (float& value : rounded) {
    const std::uint32_t bits = std::uint32_t{ToBfloat16(value)} << 16;
    std::memcpy(&value, &bits, sizeof(value));
  }
  bool is_native = GetParam() == Isa::kAmx;
#if defined(__x86_64__)
  is_native = is_native || (GetParam() == Isa::kAvx512 && __builtin_cpu_is("amd") != 0);
#endif
  EXPECT_EQ(MultipliesBfloat16(GetParam()), is_native);
  const WeightType type = is_native ? WeightType::kBfloat16 : WeightType::kFloat32;
  EXPECT_EQ(PackFor(GetParam(), weight.data(), bias.data(), num_outputs, num_inputs,
                    WeightType::kBfloat16),
            Pack(rounded.data(), bias.data(), num_outputs, num_inputs, type));
  EXPECT_EQ(PackedTypeFor(WeightType::kFloat32, GetParam()), WeightType::kFloat32);
  const Layer layer(rounded, &bias, num_outputs, num_inputs, type);
  const Floats out = Outputs(layer.packed, in, num_rows, num_inputs, Activation::kNone);
  for (std::int64_t i = 0; i < num_rows * num_outputs; ++i) {
    double sum = bias[static_cast<std::size_t>(i % num_outputs)];
    for (std::int64_t k = 0; k < num_inputs; ++k) {
      sum += double{in[static_cast<std::size_t>(i / num_outputs * num_inputs + k)]} *
             rounded[static_cast<std::size_t>(i % num_outputs * num_inputs + k)];
    }
    // Inputs are rounded where weights stay bfloat16.
    ASSERT_NEAR(out[static_cast<std::size_t>(i)], sum, is_native ? 0x1p-5 : 1e-5);
  }
}

TEST_P(EachIsa, ProductsOfPairsAreRight) {
  std::mt19937 random(4);
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 4},   {2, 3},   {4, 5},   {16, 8},
                                                          {17, 16}, {27, 64}, {33, 31}, {40, 33}};
  for (const auto& [num_vectors, dim] : shapes) {
    const std::int64_t num_pairs = num_vectors * (num_vectors - 1) / 2;
    for (const std::int64_t num_rows : {0, 1, 3, 13, 16, 39}) {
      const Floats in = Random(static_cast<std::size_t>(num_rows * num_vectors * dim), &random);
      Floats out(static_cast<std::size_t>(num_rows * num_pairs));
      const Rows rows{in.data(), num_vectors * dim};
      ChosenKernels().dot(WeightType::kFloat32, rows, num_rows, {num_vectors, dim},
                          {out.data(), num_pairs});
      std::size_t at = 0;
      for (std::int64_t row = 0; row < num_rows; ++row) {
        for (std::int64_t i = 0; i < num_vectors; ++i) {
          for (std::int64_t j = i + 1; j < num_vectors; ++j, ++at) {
            double sum = 0;
            for (std::int64_t k = 0; k < dim; ++k) {
              const auto first = static_cast<std::size_t>((row * num_vectors + i) * dim + k);
              const auto second = static_cast<std::size_t>((row * num_vectors + j) * dim + k);
              sum += double{in[first]} * in[second];
            }
            ASSERT_NEAR(out[at], sum, 1e-4) << num_vectors << " x " << dim;
          }
        }
      }
    }
  }
}

TEST_P(EachIsa, ProductsOfARowDoNotDependOnTheOthers) {
  std::mt19937 random(5);
  const std::pair<std::int64_t, std::int64_t> shapes[] = {
      {2, 3}, {5, 16}, {27, 64}, {28, 33}, {200, 9}};
  for (const WeightType type : {WeightType::kFloat32, WeightType::kBfloat16}) {
    for (const auto& [num_vectors, dim] : shapes) {
      const std::int64_t num_pairs = num_vectors * (num_vectors - 1) / 2, width = num_vectors * dim;
      for (const std::int64_t num_rows : {12, 15, 16, 48, 61}) {
        const Floats in = Random(static_cast<std::size_t>(num_rows * width), &random);
        // Nothing is written between the rows.
        const std::int64_t stride = num_pairs + 3;
        Floats together(static_cast<std::size_t>(num_rows * stride), -7.0F), alone = together;
        ChosenKernels().dot(type, {in.data(), width}, num_rows, {num_vectors, dim},
                            {together.data(), stride});
        for (std::int64_t row = 0; row < num_rows; ++row) {
          ChosenKernels().dot(type, {in.data() + row * width, width}, 1, {num_vectors, dim},
                              {alone.data() + row * stride, stride});
        }
        ASSERT_EQ(together, alone) << num_vectors << " x " << dim << ", " << num_rows;
        ASSERT_EQ(together.back(), -7.0F);
      }
    }
  }
}

TEST(Packed, DamagedBytesAreRefused) {
  const Floats weight(6, 0.5F);
  const Layer layer(weight, nullptr, 2, 3, WeightType::kInt8);
  ASSERT_EQ(layer.error, "");
  Packed packed;
  const std::int64_t size = layer.size;
  for (std::int64_t shorter = 0; shorter < size; ++shorter) {
    EXPECT_NE(ReadPacked(layer.bytes.get(), shorter, &packed), "");
  }
  for (std::size_t at = 0; at < 20; ++at) {
    const char before = layer.bytes.get()[at];
    layer.bytes.get()[at] = static_cast<char>(before ^ 0x40);
    EXPECT_NE(ReadPacked(layer.bytes.get(), size, &packed), "") << at;
    layer.bytes.get()[at] = before;
  }
  EXPECT_NE(ReadPacked(layer.bytes.get() + 4, size, &packed), "");
  EXPECT_EQ(ReadPacked(layer.bytes.get(), size, &packed), "");
}

TEST(Isa, NamesAreChecked) {
  EXPECT_THROW(ForceIsa("sse"), std::runtime_error);
  for (const Isa isa :
       {Isa::kAvx2, Isa::kAvx512, Isa::kAmx, Isa::kNeon, Isa::kDotprod, Isa::kI8mm}) {
    if (HasIsa(isa)) continue;
    EXPECT_THROW(ForceIsa(NameOf(isa)), std::runtime_error) << NameOf(isa);
  }
  EXPECT_EQ(BestIsa() == Isa::kAmx, HasIsa(Isa::kAmx));
  EXPECT_TRUE(HasIsa(BestIsa()));
  ForceIsa("plain");
  EXPECT_EQ(ChosenIsa(), Isa::kPlain);
  ForceIsa(NameOf(BestIsa()));
}

TEST(Isa, TheBestIsThatOfTheProcessor) {
  const char* const name = std::getenv("RECSYS_TEST_BEST_ISA");
  if (name == nullptr) GTEST_SKIP() << "RECSYS_TEST_BEST_ISA names none";
  EXPECT_STREQ(NameOf(BestIsa()), name);
}

}  // namespace
}  // namespace recsys::ops
