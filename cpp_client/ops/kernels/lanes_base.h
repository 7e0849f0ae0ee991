// What lanes have in common, number by number. Lanes that have an instruction for it hide a member.

#include <cstdint>
#include <cstring>

#include "ops/packed.h"

namespace recsys::ops {
namespace {

struct LanesBase {
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

  /// The same of 16 groups of two numbers each, which become bfloat16.
  static void TransposePairs(const float* from, std::int64_t stride, std::int64_t count, float* to,
                             std::int64_t to_stride) {
    for (std::int64_t i = 0; i < 16; ++i) {
      for (std::int64_t k = 0; k < 16; ++k) {
        std::uint16_t pair[2] = {};
        if (i < count) {
          pair[0] = ops::ToBfloat16(from[i * stride + 2 * k]);
          pair[1] = ops::ToBfloat16(from[i * stride + 2 * k + 1]);
        }
        std::memcpy(to + k * to_stride + i, pair, sizeof(pair));
      }
    }
  }

  static float OfHalf(const std::uint8_t* from) {
    std::uint16_t half = 0;
    std::memcpy(&half, from, sizeof(half));
#ifdef __F16C__
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
#else
    const std::uint32_t sign = std::uint32_t{half} << 16 & 0x80000000U, magnitude = half & 0x7fffU;
    if (magnitude < 0x0400) {
      const float value = static_cast<float>(magnitude) * 0x1p-24F;
      return sign == 0 ? value : -value;
    }
    // Infinity and NaN have the largest exponent in both.
    const std::uint32_t shift = magnitude >= 0x7c00 ? 224U << 23 : 112U << 23;
    return FloatOf(sign | ((magnitude << 13) + shift));
#endif
  }

  static float FloatOf(std::uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
};

}  // namespace
}  // namespace recsys::ops
