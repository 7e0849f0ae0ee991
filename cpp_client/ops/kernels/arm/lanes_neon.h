// Sixteen columns in four NEON registers. See lanes_plain.h for what each member does. Products of
// bytes take what the file that includes this is compiled for: I8MM, the dot product, or neither.

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#include "ops/kernels/lanes_base.h"

namespace recsys::ops {
namespace {

struct Lanes : LanesBase {
  static constexpr int kMaxRows = 3;
  static constexpr int kSinglePanels = 2;
  static constexpr int kMaxVectors = 2;
  struct Floats {
    float32x4_t of[4];
  };

  template <WeightType kType>
  struct Sums {
    Floats sums = All(0);
    void Add(std::int32_t group, const char* weights) {
      const uint32x4_t in = vdupq_n_u32(static_cast<std::uint32_t>(group));
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sums.of[i] = Add4(in, Fours(weights + 16 * i), sums.of[i]);
    }
    void AddLanes(const float* a, const float* b) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sums.of[i] = Add4(Fours(a + 4 * i), Fours(b + 4 * i), sums.of[i]);
      }
    }
    static float32x4_t Add4(uint32x4_t in, uint32x4_t by, float32x4_t sums) {
      if constexpr (kType == WeightType::kFloat32) {
        return vfmaq_f32(sums, vreinterpretq_f32_u32(in), vreinterpretq_f32_u32(by));
      } else {
        sums = vfmaq_f32(sums, First(in), First(by));
        return vfmaq_f32(sums, Second(in), Second(by));
      }
    }
    Floats AsFloats() const { return sums; }
  };

  static Floats Load(const float* from) {
    return {{vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)}};
  }
  static void Store(float* to, Floats values) {
    for (int i = 0; i < 4; ++i) vst1q_f32(to + 4 * i, values.of[i]);
  }
  static Floats All(float value) {
    const float32x4_t all = vdupq_n_f32(value);
    return {{all, all, all, all}};
  }
  static Floats Add(Floats a, Floats b) {
    for (int i = 0; i < 4; ++i) a.of[i] = vaddq_f32(a.of[i], b.of[i]);
    return a;
  }
  static Floats Times(Floats a, Floats b) {
    for (int i = 0; i < 4; ++i) a.of[i] = vmulq_f32(a.of[i], b.of[i]);
    return a;
  }
  static Floats Max(Floats a, Floats b) {
    // FMAX would take the zero with the other sign.
    for (int i = 0; i < 4; ++i) a.of[i] = vbslq_f32(vcltq_f32(a.of[i], b.of[i]), b.of[i], a.of[i]);
    return a;
  }
  static Floats TimesAdd(Floats a, Floats b, Floats c) {
    for (int i = 0; i < 4; ++i) c.of[i] = vfmaq_f32(c.of[i], a.of[i], b.of[i]);
    return c;
  }
  static Floats OfBytes(const std::uint8_t* from) {
    const uint8x16_t bytes = vld1q_u8(from);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
             vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))}};
  }
  static Floats OfHalves(const std::uint8_t* from) {
    Floats made;
    for (int i = 0; i < 4; ++i) {
      made.of[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from + 8 * i)));
    }
    return made;
  }
  template <WeightType kType>
  static Floats Shifted(const Sums<kType>& sums, std::int32_t zero,
                        const std::int32_t* weight_sums) {
    Floats made;
    for (int i = 0; i < 4; ++i) {
      const int32x4_t shift =
          vmulq_n_s32(vld1q_s32(weight_sums + 4 * i), zero - Sums<kType>::kTaken);
      made.of[i] = vcvtq_f32_s32(vsubq_s32(sums.sums[i], shift));
    }
    return made;
  }

 private:
  static uint32x4_t Fours(const void* from) {
    return vreinterpretq_u32_u8(vld1q_u8(static_cast<const std::uint8_t*>(from)));
  }
  /// The bfloat16 values of each pair as floats.
  static float32x4_t First(uint32x4_t pairs) {
    return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
  }
  static float32x4_t Second(uint32x4_t pairs) {
    return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000U)));
  }
};

/// Sums of products of whole numbers: kTaken has been taken from each input.
template <>
struct Lanes::Sums<WeightType::kInt8> {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  static constexpr std::int32_t kTaken = 0;
  void Add(std::int32_t group, const char* weights) {
    const uint8x16_t in = vreinterpretq_u8_s32(vdupq_n_s32(group));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i] = vusdotq_s32(sums[i], in, Bytes(weights + 16 * i));
  }
#elif defined(__ARM_FEATURE_DOTPROD)
  // Both factors must be signed.
  static constexpr std::int32_t kTaken = 128;
  void Add(std::int32_t group, const char* weights) {
    const uint32x4_t shifted = vdupq_n_u32(static_cast<std::uint32_t>(group) ^ 0x80808080U);
    const int8x16_t in = vreinterpretq_s8_u32(shifted);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i] = vdotq_s32(sums[i], in, Bytes(weights + 16 * i));
  }
#else
  static constexpr std::int32_t kTaken = 0;
  void Add(std::int32_t group, const char* weights) {
    const auto four = static_cast<std::uint32_t>(group);
    const int8x16x4_t by = vld4q_s8(reinterpret_cast<const std::int8_t*>(weights));
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const auto in = static_cast<std::int16_t>(four >> (8 * k) & 0xffU);
      const int16x8_t low = vmovl_s8(vget_low_s8(by.val[k])), high = vmovl_high_s8(by.val[k]);
      sums[0] = vmlal_n_s16(sums[0], vget_low_s16(low), in);
      sums[1] = vmlal_high_n_s16(sums[1], low, in);
      sums[2] = vmlal_n_s16(sums[2], vget_low_s16(high), in);
      sums[3] = vmlal_high_n_s16(sums[3], high, in);
    }
  }
#endif
  static int8x16_t Bytes(const char* from) {
    return vld1q_s8(reinterpret_cast<const std::int8_t*>(from));
  }
  int32x4_t sums[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
};

template <>
struct Lanes::Sums<WeightType::kInt16> {
  static constexpr std::int32_t kTaken = 0;
  void Add(std::int32_t group, const char* weights) {
    std::int16_t in[2];
    std::memcpy(in, &group, sizeof(in));
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int16x8x2_t by = vld2q_s16(reinterpret_cast<const std::int16_t*>(weights) + 16 * half);
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        sums[2 * half] = vmlal_n_s16(sums[2 * half], vget_low_s16(by.val[k]), in[k]);
        sums[2 * half + 1] = vmlal_high_n_s16(sums[2 * half + 1], by.val[k], in[k]);
      }
    }
  }
  int32x4_t sums[4] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};
};

}  // namespace
}  // namespace recsys::ops
