// Sixteen columns in plain C++, which the compiler makes vectors of what the processor has.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/packed.h"

namespace recsys::ops {
namespace {

struct Lanes {
  /// Rows whose sums are kept in registers together.
  static constexpr int kMaxRows = 2;
  /// Panels that are summed together for a single row.
  static constexpr int kSinglePanels = 1;
  struct Floats {
    float values[16];
  };

  /// Sums of products of 16 columns.
  template <WeightType kType>
  struct Sums {
    float sums[16] = {};
    /// Adds the products of a group of one row's inputs, and of the weights of 16 columns.
    void Add(std::int32_t group, const char* weights) {
      if constexpr (kType == WeightType::kFloat32) {
        float in = 0, by[16];
        std::memcpy(&in, &group, sizeof(in));
        std::memcpy(by, weights, sizeof(by));
        for (int i = 0; i < 16; ++i) sums[i] += in * by[i];
      } else {
        std::uint32_t by[16];
        std::memcpy(by, weights, sizeof(by));
        const auto pair = static_cast<std::uint32_t>(group);
        const float low = FloatOf(pair << 16), high = FloatOf(pair & 0xffff0000U);
        for (int i = 0; i < 16; ++i) {
          sums[i] += low * FloatOf(by[i] << 16);
          sums[i] += high * FloatOf(by[i] & 0xffff0000U);
        }
      }
    }
    Floats AsFloats() const {
      Floats floats;
      std::memcpy(floats.values, sums, sizeof(sums));
      return floats;
    }
  };

  static Floats Load(const float* from) {
    Floats floats;
    std::memcpy(floats.values, from, sizeof(floats.values));
    return floats;
  }
  static void Store(float* to, Floats floats) {
    std::memcpy(to, floats.values, sizeof(floats.values));
  }
  static Floats All(float value) {
    Floats floats;
    std::fill_n(floats.values, 16, value);
    return floats;
  }
  static Floats Add(Floats a, Floats b) {
    for (int i = 0; i < 16; ++i) a.values[i] += b.values[i];
    return a;
  }
  static Floats Times(Floats a, Floats b) {
    for (int i = 0; i < 16; ++i) a.values[i] *= b.values[i];
    return a;
  }
  /// Of NaN and a number, NaN: `b` is a number.
  static Floats Max(Floats a, Floats b) {
    for (int i = 0; i < 16; ++i)
      a.values[i] = a.values[i] < b.values[i] ? b.values[i] : a.values[i];
    return a;
  }
  /// Returns a * b + c.
  static Floats TimesAdd(Floats a, Floats b, Floats c) {
    for (int i = 0; i < 16; ++i) c.values[i] += a.values[i] * b.values[i];
    return c;
  }
  /// Returns 16 bytes, or 16 halves, as floats.
  static Floats OfBytes(const std::uint8_t* from) {
    Floats floats;
    for (int i = 0; i < 16; ++i) floats.values[i] = from[i];
    return floats;
  }
  static Floats OfHalves(const std::uint8_t* from) {
    Floats floats;
    for (int i = 0; i < 16; ++i) floats.values[i] = OfHalf(from + 2 * i);
    return floats;
  }
  static float OfHalf(const std::uint8_t* from) {
    std::uint16_t half = 0;
    std::memcpy(&half, from, sizeof(half));
    const std::uint32_t sign = std::uint32_t{half} << 16 & 0x80000000U, magnitude = half & 0x7fffU;
    if (magnitude < 0x0400) {
      const float value = static_cast<float>(magnitude) * 0x1p-24F;
      return sign == 0 ? value : -value;
    }
    // Infinity and NaN have the largest exponent in both.
    const std::uint32_t shift = magnitude >= 0x7c00 ? 224U << 23 : 112U << 23;
    return FloatOf(sign | ((magnitude << 13) + shift));
  }
  /// Returns sums of int8 products less `zero` times the sums of the weights.
  static Floats Shifted(const Sums<WeightType::kInt8>& sums, std::int32_t zero,
                        const std::int32_t* weight_sums);
  static void ToBfloat16(const float* from, std::int64_t count, std::uint16_t* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = ops::ToBfloat16(from[i]);
  }
  /// Writes 16 columns of `count` rows, at most 16, as 16 rows; the rest of them is zero.
  static void Transpose(const float* from, std::int64_t stride, std::int64_t count, float* to,
                        std::int64_t to_stride) {
    for (std::int64_t k = 0; k < 16; ++k) {
      for (std::int64_t i = 0; i < 16; ++i) {
        to[k * to_stride + i] = i < count ? from[i * stride + k] : 0;
      }
    }
  }

 private:
  static float FloatOf(std::uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
};

template <>
struct Lanes::Sums<WeightType::kInt8> {
  std::int32_t sums[16] = {};
  void Add(std::int32_t group, const char* weights) {
    std::uint8_t in[4];
    std::int8_t by[64];
    std::memcpy(in, &group, sizeof(in));
    std::memcpy(by, weights, sizeof(by));
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 4; ++k) sums[i] += in[k] * by[4 * i + k];
    }
  }
};

inline Lanes::Floats Lanes::Shifted(const Sums<WeightType::kInt8>& sums, std::int32_t zero,
                                    const std::int32_t* weight_sums) {
  Floats floats;
  for (int i = 0; i < 16; ++i) {
    floats.values[i] = static_cast<float>(sums.sums[i] - zero * weight_sums[i]);
  }
  return floats;
}

}  // namespace
}  // namespace recsys::ops
