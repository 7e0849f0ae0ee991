// Sixteen columns in AVX-512 registers. See lanes_plain.h for what each member does.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "ops/kernels/lanes_base.h"

namespace recsys::ops {
namespace {

struct Lanes : LanesBase {
  static constexpr int kMaxRows = 12;
  static constexpr int kSinglePanels = 4;
  static constexpr int kMaxVectors = 5;
  using Floats = __m512;

  template <WeightType kType>
  struct Sums {
    __m512 sums = _mm512_setzero_ps();
    void Add(std::int32_t group, const char* weights) {
      const __m512i in = _mm512_set1_epi32(group), by = _mm512_loadu_si512(weights);
      if constexpr (kType == WeightType::kFloat32) {
        sums = _mm512_fmadd_ps(_mm512_castsi512_ps(in), _mm512_castsi512_ps(by), sums);
      } else {
        sums = _mm512_dpbf16_ps(sums, (__m512bh)in, (__m512bh)by);
      }
    }
    void AddLanes(const float* a, const float* b) {
      const __m512 in = _mm512_loadu_ps(a), by = _mm512_loadu_ps(b);
      if constexpr (kType == WeightType::kFloat32) {
        sums = _mm512_fmadd_ps(in, by, sums);
      } else {
        sums = _mm512_dpbf16_ps(sums, (__m512bh)in, (__m512bh)by);
      }
    }
    Floats AsFloats() const { return sums; }
  };

  static Floats Load(const float* from) { return _mm512_loadu_ps(from); }
  static void Store(float* to, Floats values) { _mm512_storeu_ps(to, values); }
  static Floats All(float value) { return _mm512_set1_ps(value); }
  static Floats Add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats Times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  // The instruction returns its second operand where one of them is NaN.
  static Floats Max(Floats a, Floats b) { return _mm512_max_ps(b, a); }

  static Floats TimesAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats OfBytes(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
  }
  static Floats OfHalves(const std::uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  template <WeightType kType>
  static Floats Shifted(const Sums<kType>& sums, std::int32_t zero,
                        const std::int32_t* weight_sums) {
    const __m512i shift =
        _mm512_mullo_epi32(_mm512_set1_epi32(zero), _mm512_loadu_si512(weight_sums));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(sums.sums, shift));
  }

  static void ToBfloat16(const float* from, std::int64_t count, std::uint16_t* to) {
    std::int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
      const __m512i pairs = Pairs(from + i);
      std::memcpy(to + i, &pairs, sizeof(pairs));
    }
    for (; i + 16 <= count; i += 16) {
      const __m256bh some = _mm512_cvtneps_pbh(_mm512_loadu_ps(from + i));
      std::memcpy(to + i, &some, sizeof(some));
    }
    for (; i < count; ++i) to[i] = ops::ToBfloat16(from[i]);
  }
  static void Transpose(const float* from, std::int64_t stride, std::int64_t count, float* to,
                        std::int64_t to_stride) {
    __m512 rows[16];
    for (int i = 0; i < 16; ++i) {
      rows[i] = i < count ? _mm512_loadu_ps(from + i * stride) : _mm512_setzero_ps();
    }
    Turn(rows, to, to_stride);
  }
  static void TransposePairs(const float* from, std::int64_t stride, std::int64_t count, float* to,
                             std::int64_t to_stride) {
    __m512 rows[16];
    for (int i = 0; i < 16; ++i) {
      rows[i] = i < count ? _mm512_castsi512_ps(Pairs(from + i * stride)) : _mm512_setzero_ps();
    }
    Turn(rows, to, to_stride);
  }

 private:
  /// 32 numbers as bfloat16.
  static __m512i Pairs(const float* from) {
    return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from));
  }
  /// Writes 16 columns of `rows` as rows.
  static void Turn(__m512* rows, float* to, std::int64_t to_stride);
};

template <>
struct Lanes::Sums<WeightType::kInt8> {
  __m512i sums = _mm512_setzero_si512();
  void Add(std::int32_t group, const char* weights) {
    sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(group), _mm512_loadu_si512(weights));
  }
};

template <>
struct Lanes::Sums<WeightType::kInt16> {
  __m512i sums = _mm512_setzero_si512();
  void Add(std::int32_t group, const char* weights) {
    sums = _mm512_dpwssd_epi32(sums, _mm512_set1_epi32(group), _mm512_loadu_si512(weights));
  }
};

inline void Lanes::Turn(__m512* rows, float* to, std::int64_t to_stride) {
  __m512 some[16];
  for (int i = 0; i < 8; ++i) {
    some[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
    some[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
  }
  // After this, rows[4 i + c] has column 4 q + c of rows 4 i to 4 i + 3 in its quarter q.
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      const __m512d a = _mm512_castps_pd(some[4 * i + half]);
      const __m512d b = _mm512_castps_pd(some[4 * i + 2 + half]);
      rows[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      rows[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  for (int c = 0; c < 4; ++c) {
    const __m512 even = _mm512_shuffle_f32x4(rows[c], rows[4 + c], 0x88);
    const __m512 odd = _mm512_shuffle_f32x4(rows[c], rows[4 + c], 0xdd);
    const __m512 even_end = _mm512_shuffle_f32x4(rows[8 + c], rows[12 + c], 0x88);
    const __m512 odd_end = _mm512_shuffle_f32x4(rows[8 + c], rows[12 + c], 0xdd);
    _mm512_storeu_ps(to + c * to_stride, _mm512_shuffle_f32x4(even, even_end, 0x88));
    _mm512_storeu_ps(to + (4 + c) * to_stride, _mm512_shuffle_f32x4(odd, odd_end, 0x88));
    _mm512_storeu_ps(to + (8 + c) * to_stride, _mm512_shuffle_f32x4(even, even_end, 0xdd));
    _mm512_storeu_ps(to + (12 + c) * to_stride, _mm512_shuffle_f32x4(odd, odd_end, 0xdd));
  }
}

}  // namespace
}  // namespace recsys::ops
