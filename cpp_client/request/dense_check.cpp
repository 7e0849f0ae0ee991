#include "request/dense_check.h"

#include <cstring>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// A float32 is not finite if all bits of its exponent are set.
constexpr std::uint32_t kExponent = 0x7f800000;
// The sign's bit; an infinity has all bits of the exponent and no others but this.
constexpr std::uint32_t kSign = 0x80000000;
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the wire's numbers are read as they come");

std::uint32_t BitsAt(const char* floats, std::int64_t at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, floats + 4 * at, sizeof(bits));
  return bits;
}

[[noreturn]] void TooLarge(const char* what, const std::string& got, std::int64_t most) {
  throw Error(ErrorKind::kRequestTooLarge, std::string(what) + ": got " + got +
                                               ", expected at most " + std::to_string(most) +
                                               " in one request; split it");
}

}  // namespace

void CheckSizes(const RequestLimits& limits, std::int64_t num_rows, Wide num_ids, Wide num_bytes) {
  if (num_rows > limits.max_rows) TooLarge("num_rows", std::to_string(num_rows), limits.max_rows);
  if (num_ids > limits.max_ids) TooLarge("sparse", WideText(num_ids) + " IDs", limits.max_ids);
  if (num_bytes > limits.max_bytes)
    TooLarge("message", WideText(num_bytes) + " bytes", limits.max_bytes);
}

std::int64_t FirstNonFinite(const char* floats, std::int64_t num) {
  // First all at once, without a branch per number: nearly all requests are valid.
  std::uint32_t bad = 0;
  for (std::int64_t i = 0; i < num; ++i)
    bad |= (BitsAt(floats, i) & kExponent) == kExponent ? 1U : 0U;
  if (bad == 0) return num;
  std::int64_t at = 0;
  while ((BitsAt(floats, at) & kExponent) != kExponent) ++at;
  return at;
}

std::int64_t FirstInfinite(const char* floats, std::int64_t num) {
  std::int64_t at = 0;
  while (at < num && (BitsAt(floats, at) & ~kSign) != kExponent) ++at;
  return at;
}

std::string NonFiniteText(const char* floats, std::int64_t at) {
  float value = 0;
  std::memcpy(&value, floats + 4 * at, sizeof(value));
  return ReprFloat(static_cast<double>(value));
}

void DenseCheck::Run(std::string_view values, bool allow_non_finite) const {
  const char* field = once ? "context_dense" : "dense";
  const auto at = [&] { return std::string(field) + "[" + Repr(input.name) + "].values: got "; };
  const Wide expected = Wide{num_rows} * input.width * 4;
  if (static_cast<Wide>(values.size()) != expected) {
    throw Error(ErrorKind::kRequest, at() + std::to_string(values.size()) + " bytes, expected " +
                                         WideText(expected) + " (float32 [" +
                                         std::to_string(num_rows) + ", " +
                                         std::to_string(input.width) + "])");
  }
  if (allow_non_finite) return;
  const auto num = static_cast<std::int64_t>(values.size() / 4);
  std::int64_t bad = FirstNonFinite(values.data(), num);
  if (bad < num && input.missing) bad = FirstInfinite(values.data(), num);
  if (bad == num) return;
  throw Error(ErrorKind::kRequest, at() + NonFiniteText(values.data(), bad) + " in row " +
                                       std::to_string(bad / input.width) + ", column " +
                                       std::to_string(bad % input.width) +
                                       ", expected finite numbers" +
                                       (input.missing ? ", or nan for a missing one" : ""));
}

}  // namespace recsys
