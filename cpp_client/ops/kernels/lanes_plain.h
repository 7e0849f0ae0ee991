// Sixteen columns in plain C++, which the compiler makes vectors of what the processor has.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ops/kernels/lanes_base.h"

namespace recsys::ops {
namespace {

struct Lanes : LanesBase {
  /// Rows whose sums are kept in registers together.
  static constexpr int kMaxRows = 2;
  /// Panels that are summed together for a single row.
  static constexpr int kSinglePanels = 1;
  /// Vectors of which each is multiplied with as many others together.
  static constexpr int kMaxVectors = 2;
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
    /// Adds the products of groups of 16 rows.
    void AddLanes(const float* a, const float* b) {
      for (int i = 0; i < 16; ++i) {
        if constexpr (kType == WeightType::kFloat32) {
          sums[i] += a[i] * b[i];
        } else {
          std::uint32_t in = 0, by = 0;
          std::memcpy(&in, a + i, sizeof(in));
          std::memcpy(&by, b + i, sizeof(by));
          sums[i] += FloatOf(in << 16) * FloatOf(by << 16);
          sums[i] += FloatOf(in & 0xffff0000U) * FloatOf(by & 0xffff0000U);
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
  /// NaN where `a` is NaN; `b` is a number.
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
    for (std::ptrdiff_t i = 0; i < 16; ++i) floats.values[i] = OfHalf(from + 2 * i);
    return floats;
  }
  /// Returns sums of products of whole numbers less `zero` times the sums of the weights.
  template <WeightType kType>
  static Floats Shifted(const Sums<kType>& sums, std::int32_t zero,
                        const std::int32_t* weight_sums) {
    Floats floats;
    for (int i = 0; i < 16; ++i) {
      floats.values[i] = static_cast<float>(sums.sums[i] - zero * weight_sums[i]);
    }
    return floats;
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

template <>
struct Lanes::Sums<WeightType::kInt16> {
  std::int32_t sums[16] = {};
  void Add(std::int32_t group, const char* weights) {
    std::int16_t in[2], by[32];
    std::memcpy(in, &group, sizeof(in));
    std::memcpy(by, weights, sizeof(by));
    for (std::ptrdiff_t i = 0; i < 16; ++i) sums[i] += in[0] * by[2 * i] + in[1] * by[2 * i + 1];
  }
};

}  // namespace
}  // namespace recsys::ops
