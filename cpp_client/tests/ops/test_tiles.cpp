// The kernels for AMX with emulated tiles, at odd sizes, against those of other instruction sets.
// amx_test.cpp tests them with the instructions, kernels_test.cpp with them where the processor has
// them.

#if defined(__x86_64__)

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "ops/cpu/amx.h"
#include "ops/kernels/kernels.h"
#include "tests/ops/layer.h"

// The emulation by itself.
#include "ops/kernels/x86/tiles.h"

namespace recsys::ops {
namespace {

constexpr int kRows[] = {0, 1, 2, 5, 15, 16, 17, 31, 32, 33, 48, 49, 300};
constexpr int kInputs[] = {1, 3, 13, 64, 65, 415, 512};
constexpr int kOutputs[] = {1, 16, 17, 31, 33, 80, 513};

class Emulated : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasIsa(Isa::kAvx512)) GTEST_SKIP() << "this processor has no avx512";
  }
};

/// Runs a layer on rows that lie `stride` apart, and checks that nothing lies changed between the
/// rows of outputs. Returns those.
Floats Outputs(const Kernels& kernels, const Packed& packed, const Floats& in,
               std::int64_t num_rows, std::int64_t stride, Activation activation) {
  constexpr float kUntouched = -7;
  const std::int64_t width = packed.num_outputs, out_stride = width + num_rows % 4;
  // The exact size: the address sanitizer sees what is written behind it.
  Floats out(static_cast<std::size_t>(num_rows == 0 ? 0 : (num_rows - 1) * out_stride + width),
             kUntouched);
  kernels.linear(packed, {in.data(), stride}, num_rows, activation, {out.data(), out_stride},
                 nullptr);
  Floats rows;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const auto first = out.begin() + row * out_stride;
    rows.insert(rows.end(), first, first + width);
    if (row + 1 == num_rows) continue;
    EXPECT_TRUE(std::all_of(first + width, first + out_stride,
                            [](float value) { return value == kUntouched; }));
  }
  return rows;
}

float LargestOf(const Floats& values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

/// Calls `check` with a layer and its inputs for each of the sizes.
template <typename Check>
void ForSizes(WeightType type, const Check& check) {
  std::mt19937 random(1);
  int number = 0;
  for (const std::int64_t num_inputs : kInputs) {
    for (const std::int64_t num_outputs : kOutputs) {
      const Floats weight = Random(static_cast<std::size_t>(num_outputs * num_inputs), &random);
      const Floats bias = Random(static_cast<std::size_t>(num_outputs), &random);
      const Layer layer(weight, &bias, num_outputs, num_inputs, type);
      ASSERT_EQ(layer.error, "");
      for (const std::int64_t num_rows : kRows) {
        const auto activation = static_cast<Activation>(number++ % 3);
        const std::int64_t stride = num_inputs + num_rows % 3;
        // Inputs that are never negative are rounded to 255 steps.
        const Floats in =
            Random(static_cast<std::size_t>(num_rows * stride), &random, num_rows == 5 ? 0 : -1);
        SCOPED_TRACE(testing::Message() << num_outputs << " x " << num_inputs << ", " << num_rows);
        check(layer.packed, in, num_rows, stride, activation);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_F(Emulated, Int8HasTheBitsOfAvx512) {
  ForSizes(WeightType::kInt8, [](const Packed& packed, const Floats& in, std::int64_t num_rows,
                                 std::int64_t stride, Activation activation) {
    const Floats got = Outputs(EmulatedAmxKernels(), packed, in, num_rows, stride, activation);
    ASSERT_EQ(got, Outputs(Avx512Kernels(), packed, in, num_rows, stride, activation));
    const Floats plain = Outputs(PlainKernels(), packed, in, num_rows, stride, activation);
    // Where multiplying and adding rounds twice, an input between two steps may go to the other.
    const double tolerance = 2.0 / 127;
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], plain[i], tolerance);
  });
}

TEST_F(Emulated, Bfloat16IsNearTheOthers) {
  ForSizes(WeightType::kBfloat16, [](const Packed& packed, const Floats& in, std::int64_t num_rows,
                                     std::int64_t stride, Activation activation) {
    const Floats got = Outputs(EmulatedAmxKernels(), packed, in, num_rows, stride, activation);
    // The products are those of equal numbers: sums in float32 differ by their rounding only.
    const double tolerance =
        0x1p-23 * (4 + static_cast<double>(packed.num_inputs)) * (1 + LargestOf(got)) / 4;
    for (const Kernels* const others : {&PlainKernels(), &Avx512Kernels()}) {
      const Floats expected = Outputs(*others, packed, in, num_rows, stride, activation);
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], tolerance);
    }
  });
}

TEST_F(Emulated, ARowHasTheSameBitsAloneAndInABatch) {
  for (const WeightType type : {WeightType::kBfloat16, WeightType::kInt8}) {
    ForSizes(type, [](const Packed& packed, const Floats& in, std::int64_t num_rows,
                      std::int64_t stride, Activation activation) {
      const std::int64_t width = packed.num_outputs;
      const Floats all = Outputs(EmulatedAmxKernels(), packed, in, num_rows, stride, activation);
      // All rows of small layers, and some of large ones.
      const std::int64_t step = packed.num_inputs * width > 10'000 ? 13 : 1;
      for (std::int64_t row = num_rows - 1; row >= 0; row -= step) {
        const Floats one(in.begin() + row * stride, in.begin() + row * stride + packed.num_inputs);
        const Floats alone =
            Outputs(EmulatedAmxKernels(), packed, one, 1, packed.num_inputs, activation);
        ASSERT_EQ(std::memcmp(alone.data(), all.data() + row * width,
                              static_cast<std::size_t>(width) * sizeof(float)),
                  0)
            << row;
      }
    });
  }
}

TEST_F(Emulated, NumbersThatAreNoneStayInTheirRow) {
  std::mt19937 random(2);
  const std::int64_t num_outputs = 40, num_inputs = 50, num_rows = 17;
  const Floats weight = Random(num_outputs * num_inputs, &random);
  for (const WeightType type : {WeightType::kBfloat16, WeightType::kInt8}) {
    const Layer layer(weight, nullptr, num_outputs, num_inputs, type);
    const auto run = [&](const Floats& in) {
      return Outputs(EmulatedAmxKernels(), layer.packed, in, num_rows, num_inputs,
                     Activation::kNone);
    };
    for (const float none :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Floats in = Random(num_rows * num_inputs, &random);
      const Floats before = run(in);
      in[9 * num_inputs + 7] = none;
      const Floats after = run(in);
      for (std::size_t i = 0; i < after.size(); ++i) {
        if (i / num_outputs == 9) {
          EXPECT_FALSE(std::isfinite(after[i]));
        } else {
          EXPECT_EQ(after[i], before[i]);
        }
      }
    }
  }
}

TEST_F(Emulated, AllElseIsThatOfAvx512) {
  const Kernels &amx = EmulatedAmxKernels(), &avx512 = Avx512Kernels();
  EXPECT_EQ(amx.dot, avx512.dot);
  EXPECT_EQ(amx.find, avx512.find);
  EXPECT_EQ(amx.pool, avx512.pool);
  EXPECT_EQ(amx.elementwise, avx512.elementwise);
  std::mt19937 random(3);
  const Layer layer(Random(5 * 7, &random), nullptr, 5, 7, WeightType::kFloat32);
  const Floats in = Random(3 * 7, &random);
  EXPECT_EQ(Outputs(amx, layer.packed, in, 3, 7, Activation::kRelu),
            Outputs(avx512, layer.packed, in, 3, 7, Activation::kRelu));
}

TEST_F(Emulated, ALayerFetchesRowsMeanwhile) {
  std::mt19937 random(4);
  const Layer layer(Random(64 * 512, &random), nullptr, 64, 512, WeightType::kBfloat16);
  const std::uint8_t row[64] = {};
  const std::uint8_t* const rows[] = {row, row, row, row, row, row};
  for (const std::int64_t num_rows : {1, 40}) {
    const Floats in = Random(static_cast<std::size_t>(num_rows * 512), &random);
    Floats out(static_cast<std::size_t>(num_rows * 64));
    Ahead ahead{rows, 6, 64, 2};
    EmulatedAmxKernels().linear(layer.packed, {in.data(), 512}, num_rows, Activation::kNone,
                                {out.data(), 64}, &ahead);
    EXPECT_EQ(ahead.num_rows, 0);
    EXPECT_EQ(ahead.rows, rows + 6);
  }
}

/// Wrong by one bit in one type.
template <WeightType kType>
void WrongLinear(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
                 OutRows out, Ahead* ahead) {
  Avx512Kernels().linear(weights, in, num_rows, activation, out, ahead);
  if (weights.type != kType) return;
  float& last = out.data[num_rows * out.stride - 1];
  last = std::nextafter(last, 1e9F);
}

TEST_F(Emulated, TheCheckOfAProcessorSeesOneWrongBit) {
  EXPECT_TRUE(LinearLayersAgree(Avx512Kernels(), EmulatedAmxKernels()));
  Kernels wrong = Avx512Kernels();
  wrong.linear = &WrongLinear<WeightType::kInt8>;
  EXPECT_FALSE(LinearLayersAgree(wrong, EmulatedAmxKernels()));
  wrong.linear = &WrongLinear<WeightType::kBfloat16>;
  EXPECT_FALSE(LinearLayersAgree(wrong, EmulatedAmxKernels()));
}

TEST(Amx, ComputesWhatItShould) {
  if (!HasIsa(Isa::kAmx)) GTEST_SKIP() << "this processor has no amx";
  EXPECT_TRUE(AmxIsRight());
}

/// One group of bfloat16 in A and B, added to a sum.
float DotOf(std::uint32_t a, std::uint32_t b, float sum) {
  PlainTiles tiles;
  TileShapes shapes;
  for (int tile = 0; tile < 3; ++tile) shapes.Set(tile, 1, 1);
  tiles.Configure(shapes);
  char bytes[3][4];
  std::memcpy(bytes[0], &sum, 4);
  std::memcpy(bytes[1], &a, 4);
  std::memcpy(bytes[2], &b, 4);
  tiles.Load(0, bytes[0], 64);
  tiles.Load(1, bytes[1], 64);
  tiles.Load(2, bytes[2], 64);
  tiles.Dot<WeightType::kBfloat16>(0, 1, 2);
  tiles.Store(0, bytes[0], 64);
  std::memcpy(&sum, bytes[0], 4);
  return sum;
}

TEST(PlainTiles, RoundAndFlushAsTheManualSays) {
  // Pairs of bfloat16: 1, 2 and -3 are 0x3f80, 0x4000 and 0xc040.
  EXPECT_EQ(DotOf(0x40003f80, 0xc0404000, 0.5F), 1 * 2 + 2 * -3 + 0.5F);
  EXPECT_EQ(DotOf(0x00003f80, 0x00003f80, 0x1p24F), 0x1p24F) << "ties to even";
  EXPECT_EQ(DotOf(0x3f803f80, 0x3f803f80, 0x1p24F), 0x1p24F + 2) << "the pair is added first";
  EXPECT_EQ(DotOf(0x00000001, 0x00007f00, 0), 0.0F) << "a denormal input is zero";
  EXPECT_EQ(DotOf(0x00000080, 0x00003f00, 0), 0.0F) << "a denormal product is zero";
  EXPECT_EQ(DotOf(0, 0, 0x1p-130F), 0.0F) << "a denormal sum is zero";
  EXPECT_TRUE(std::isnan(DotOf(0x00007f80, 0, 0))) << "infinity times zero";
}

TEST(PlainTiles, TrapWhereTheProcessorWould) {
  const auto dot = [](std::int64_t groups, std::int64_t rows) {
    PlainTiles tiles;
    TileShapes shapes;
    shapes.Set(0, 2, 3);
    shapes.Set(1, 2, groups);
    shapes.Set(2, rows, 3);
    tiles.Configure(shapes);
    tiles.Dot<WeightType::kInt8>(0, 1, 2);
  };
  dot(4, 4);
  EXPECT_DEATH(dot(4, 5), "");
  EXPECT_DEATH(dot(0, 0), "");
  EXPECT_DEATH(dot(17, 17), "");
  EXPECT_DEATH(PlainTiles().Zero(3), "");
}

}  // namespace
}  // namespace recsys::ops

#endif
