// Functions of one number without branches, which the compiler makes vectors of: included after
// linear_rows.h. Products and sums are rounded one by one, so that their bits are the same on every
// instruction set.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace recsys::ops {
namespace {

/// Returns e to the power of `value`, to 1e-7 of it. The polynomial is that of Cephes' expf
/// (Stephen L. Moshier).
inline float Exp(float value) {
  // Beyond these bounds it is 0 or infinite. Numbers so small that they become 0 take processors
  // a hundred times as long as others, and masks are full of them: nothing is computed of these.
  const bool is_zero = value < -104.0F;
  value = is_zero ? 0.0F : value;
  value = value > 89.0F ? 89.0F : value;
  const float shifted = value * 1.44269504088896341F + kRounding;
  const float power = shifted - kRounding;
  std::uint32_t bits = 0, rounding = 0;
  std::memcpy(&bits, &shifted, sizeof(bits));
  std::memcpy(&rounding, &kRounding, sizeof(rounding));
  const auto exponent = static_cast<std::int32_t>(bits - rounding);
  const float rest = value - power * 0.693359375F - power * -2.12194440e-4F;
  float sum = 1.9875691500e-4F;
  sum = sum * rest + 1.3981999507e-3F;
  sum = sum * rest + 8.3334519073e-3F;
  sum = sum * rest + 4.1665795894e-2F;
  sum = sum * rest + 1.6666665459e-1F;
  sum = sum * rest + 5.0000001201e-1F;
  sum = sum * rest * rest + rest + 1.0F;
  // In two steps, each a number with a full mantissa.
  const std::int32_t half = exponent >> 1;
  const auto power_of_two = [](std::int32_t of) {
    const std::uint32_t made = static_cast<std::uint32_t>(of + 127) << 23;
    float number = 0;
    std::memcpy(&number, &made, sizeof(number));
    return number;
  };
  const float found = sum * power_of_two(half) * power_of_two(exponent - half);
  return is_zero ? 0.0F : found;
}

/// Returns the magnitude of one number with the sign of another.
inline float WithSign(float magnitude, float sign) {
  std::uint32_t bits = 0, from = 0;
  std::memcpy(&bits, &magnitude, sizeof(bits));
  std::memcpy(&from, &sign, sizeof(from));
  bits = (bits & kMagnitude) | (from & kSign);
  std::memcpy(&magnitude, &bits, sizeof(magnitude));
  return magnitude;
}

inline float Logistic(float value) { return 1 / (1 + Exp(-value)); }

/// As Cephes' tanhf: a polynomial for small numbers.
inline float Tanh(float value) {
  const float square = value * value;
  float sum = -5.70498872745e-3F;
  sum = sum * square + 2.06390887954e-2F;
  sum = sum * square - 5.37397155531e-2F;
  sum = sum * square + 1.33314422036e-1F;
  sum = sum * square - 3.33332819422e-1F;
  const float small = sum * square * value + value;
  const float magnitude = WithSign(value, 1.0F);
  const float falling = Exp(-2 * magnitude);
  const float large = WithSign((1 - falling) / (1 + falling), value);
  return magnitude < 0.625F ? small : large;
}

/// The error function, to 1.5e-7: formula 7.1.26 of Abramowitz and Stegun, as torch computes it.
inline float Erf(float value) {
  const float magnitude = WithSign(value, 1.0F);
  const float part = 1 / (1 + 0.3275911F * magnitude);
  float sum = 1.061405429F;
  sum = sum * part - 1.453152027F;
  sum = sum * part + 1.421413741F;
  sum = sum * part - 0.284496736F;
  sum = sum * part + 0.254829592F;
  return WithSign(1 - sum * part * Exp(-magnitude * magnitude), value);
}

inline float Gelu(float value) { return 0.5F * value * (1 + Erf(value * 0.70710678118654752F)); }

inline float GeluTanh(float value) {
  const float cube = value * value * value;
  return 0.5F * value * (1 + Tanh(0.79788456080286536F * (value + 0.044715F * cube)));
}

}  // namespace
}  // namespace recsys::ops
