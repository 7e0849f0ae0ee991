// Sixteen columns in two AVX2 registers. See lanes_plain.h for what each member does.

#include <immintrin.h>

#include <cstdint>

#include "ops/kernels/lanes_base.h"

namespace recsys::ops {
namespace {

struct Lanes : LanesBase {
  static constexpr int kMaxRows = 3;
  static constexpr int kSinglePanels = 2;
  static constexpr int kMaxVectors = 2;
  struct Floats {
    __m256 low, high;
  };

  template <WeightType kType>
  struct Sums {
    Floats sums{_mm256_setzero_ps(), _mm256_setzero_ps()};
    void Add(std::int32_t group, const char* weights) {
      const __m256i in = _mm256_set1_epi32(group);
      sums.low = Add8(in, Bytes(weights), sums.low);
      sums.high = Add8(in, Bytes(weights + 32), sums.high);
    }
    void AddLanes(const float* a, const float* b) {
      sums.low = Add8(Bytes(a), Bytes(b), sums.low);
      sums.high = Add8(Bytes(a + 8), Bytes(b + 8), sums.high);
    }
    static __m256 Add8(__m256i in, __m256i by, __m256 sums) {
      if constexpr (kType == WeightType::kFloat32) {
        return _mm256_fmadd_ps(_mm256_castsi256_ps(in), _mm256_castsi256_ps(by), sums);
      } else {
        sums = _mm256_fmadd_ps(First(in), First(by), sums);
        return _mm256_fmadd_ps(Second(in), Second(by), sums);
      }
    }
    // Not a copy of the structure, which compilers make in halves of registers.
    Floats AsFloats() const { return {sums.low, sums.high}; }
  };

  static Floats Load(const float* from) {
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
  }
  static void Store(float* to, Floats values) {
    _mm256_storeu_ps(to, values.low);
    _mm256_storeu_ps(to + 8, values.high);
  }
  static Floats All(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Floats Add(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Floats Times(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static Floats Max(Floats a, Floats b) {
    // The instruction returns its second operand where one of them is NaN.
    return {_mm256_max_ps(b.low, a.low), _mm256_max_ps(b.high, a.high)};
  }
  static Floats TimesAdd(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Floats OfBytes(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  static Floats OfHalves(const std::uint8_t* from) {
    const auto* const halves = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  template <WeightType kType>
  static Floats Shifted(const Sums<kType>& sums, std::int32_t zero,
                        const std::int32_t* weight_sums) {
    const __m256i by = _mm256_set1_epi32(zero);
    const __m256i low = _mm256_mullo_epi32(by, Bytes(weight_sums));
    const __m256i high = _mm256_mullo_epi32(by, Bytes(weight_sums + 8));
    return {_mm256_cvtepi32_ps(_mm256_sub_epi32(sums.low, low)),
            _mm256_cvtepi32_ps(_mm256_sub_epi32(sums.high, high))};
  }
  static void Transpose(const float* from, std::int64_t stride, std::int64_t count, float* to,
                        std::int64_t to_stride) {
    for (std::int64_t column = 0; column < 16; column += 8) {
      for (std::int64_t row = 0; row < 16; row += 8) {
        Turn(from + row * stride + column, stride, count - row, to + column * to_stride + row,
             to_stride);
      }
    }
  }

 private:
  /// Writes 8 columns of `count` rows, of which it takes 8, as 8 rows; the rest of them is zero.
  static void Turn(const float* from, std::int64_t stride, std::int64_t count, float* to,
                   std::int64_t to_stride) {
    __m256 rows[8], pairs[8];
    for (int i = 0; i < 8; ++i) {
      rows[i] = i < count ? _mm256_loadu_ps(from + i * stride) : _mm256_setzero_ps();
    }
    for (int i = 0; i < 4; ++i) {
      pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
      pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    // After this, rows[4 i + c] has column 4 q + c of rows 4 i to 4 i + 3 in its half q.
    for (int i = 0; i < 2; ++i) {
      for (int half = 0; half < 2; ++half) {
        const __m256d a = _mm256_castps_pd(pairs[4 * i + half]);
        const __m256d b = _mm256_castps_pd(pairs[4 * i + 2 + half]);
        rows[4 * i + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
        rows[4 * i + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
      }
    }
    for (int c = 0; c < 4; ++c) {
      _mm256_storeu_ps(to + c * to_stride, _mm256_permute2f128_ps(rows[c], rows[4 + c], 0x20));
      _mm256_storeu_ps(to + (4 + c) * to_stride,
                       _mm256_permute2f128_ps(rows[c], rows[4 + c], 0x31));
    }
  }
  static __m256i Bytes(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  /// The bfloat16 values of each pair as floats.
  static __m256 First(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static __m256 Second(__m256i pairs) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
  }
};

template <>
struct Lanes::Sums<WeightType::kInt8> {
  __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
  void Add(std::int32_t group, const char* weights) {
    const __m256i in = _mm256_set1_epi32(group);
    low = Add8(in, Bytes(weights), low);
    high = Add8(in, Bytes(weights + 32), high);
  }
  /// Bytes at even and odd places as 16 bits: products of bytes could saturate.
  static __m256i Add8(__m256i in, __m256i by, __m256i sums) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(in, _mm256_set1_epi16(0xff)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(by, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(in, 8), _mm256_srai_epi16(by, 8));
    return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
  }
};

template <>
struct Lanes::Sums<WeightType::kInt16> {
  __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
  void Add(std::int32_t group, const char* weights) {
    const __m256i in = _mm256_set1_epi32(group);
    low = _mm256_add_epi32(low, _mm256_madd_epi16(in, Bytes(weights)));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(in, Bytes(weights + 32)));
  }
};

}  // namespace
}  // namespace recsys::ops
