#include "request/input_checks.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "recsys/error.h"
#include "request/texts.h"

namespace recsys {
namespace {

// A float32 is not finite if all bits of its exponent are set.
constexpr std::uint32_t kExponent = 0x7f800000;
// The sign's bit; an infinity has all bits of the exponent and no others but this.
constexpr std::uint32_t kSign = 0x80000000;
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the wire's numbers are read as they come");

constexpr std::size_t kLengthBytes = 4, kIdBytes = 8, kFloatBytes = 4;

template <typename T>
T NumberAt(const char* data, std::int64_t at) {
  T value;
  std::memcpy(&value, data + static_cast<std::size_t>(at) * sizeof(T), sizeof(T));
  return value;
}

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kRequest, text); }

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
    bad |= (NumberAt<std::uint32_t>(floats, i) & kExponent) == kExponent ? 1U : 0U;
  if (bad == 0) return num;
  std::int64_t at = 0;
  while ((NumberAt<std::uint32_t>(floats, at) & kExponent) != kExponent) ++at;
  return at;
}

std::int64_t FirstInfinite(const char* floats, std::int64_t num) {
  std::int64_t at = 0;
  while (at < num && (NumberAt<std::uint32_t>(floats, at) & ~kSign) != kExponent) ++at;
  return at;
}

std::string NonFiniteText(const char* floats, std::int64_t at) {
  return ReprFloat(static_cast<double>(NumberAt<float>(floats, at)));
}

void DenseCheck::Run(std::string_view values, bool allow_non_finite) const {
  const char* field = once ? "context_dense" : "dense";
  const auto at = [&] { return std::string(field) + "[" + Repr(input.name) + "].values: got "; };
  const Wide expected = Wide{num_rows} * input.width * 4;
  if (static_cast<Wide>(values.size()) != expected) {
    Refuse(at() + std::to_string(values.size()) + " bytes, expected " + WideText(expected) +
           " (float32 [" + std::to_string(num_rows) + ", " + std::to_string(input.width) + "])");
  }
  if (allow_non_finite) return;
  const auto num = static_cast<std::int64_t>(values.size() / 4);
  std::int64_t bad = FirstNonFinite(values.data(), num);
  if (bad < num && input.missing) bad = FirstInfinite(values.data(), num);
  if (bad == num) return;
  Refuse(at() + NonFiniteText(values.data(), bad) + " in row " + std::to_string(bad / input.width) +
         ", column " + std::to_string(bad % input.width) + ", expected finite numbers" +
         (input.missing ? ", or nan for a missing one" : ""));
}

void CheckSameLengths(const Signature& signature, const SameLengths& same, BagLengths lengths,
                      BagLengths others, std::int64_t num_rows) {
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const auto got = NumberAt<std::int32_t>(lengths.lengths, lengths.once ? 0 : row);
    const auto expected = NumberAt<std::int32_t>(others.lengths, others.once ? 0 : row);
    if (got == expected) continue;
    Refuse(std::string(same.field) + "[" + Repr(signature.sparse[same.input].name) +
           "].lengths: got " + std::to_string(got) + " in row " + std::to_string(row) +
           ", expected " + std::to_string(expected) + ", as many as " +
           Repr(signature.sparse[same.other].name) + " has there");
  }
}

std::string SparseCheck::At(std::size_t input, const char* part) const {
  return std::string(field_) + "[" + Repr(signature_.sparse[input].name) + "]." + part + ": got ";
}

void SparseCheck::Start(const char* field, std::int64_t num_rows) {
  field_ = field;
  num_rows_ = num_rows;
  num_ids_ = num_texts_ = 0;
  wrong_sum_.reset();
}

void SparseCheck::Size(std::size_t input, const RawSparse& raw, SparseView* view) {
  std::size_t num_ids = raw.values.size() / kIdBytes;
  const auto expected = static_cast<Wide>(num_rows_) * kLengthBytes;
  if (static_cast<Wide>(raw.lengths.size()) != expected) {
    Refuse(At(input, "lengths") + std::to_string(raw.lengths.size()) + " bytes, expected " +
           WideText(expected) + " (int32 [" + std::to_string(num_rows_) + "])");
  }
  if (raw.values.size() % kIdBytes != 0) {
    Refuse(At(input, "values") + std::to_string(raw.values.size()) +
           " bytes, expected a multiple of 8 (int64 IDs)");
  }
  if (raw.texts.num_texts > 0) {
    if (num_ids > 0) {
      Refuse(At(input, "strings") + std::to_string(raw.texts.num_texts) + " texts beside " +
             std::to_string(num_ids) + " values, expected one of the two");
    }
    num_ids = static_cast<std::size_t>(raw.texts.num_texts);
    num_texts_ += raw.texts.num_texts;
  }
  const bool weighted = signature_.sparse[input].weighted;
  if (!weighted && !raw.weights.empty()) {
    Refuse(At(input, "weights") + std::to_string(raw.weights.size()) +
           " bytes, expected none: the input is not weighted");
  }
  if (weighted && raw.weights.size() != num_ids * kFloatBytes) {
    Refuse(At(input, "weights") + std::to_string(raw.weights.size()) + " bytes, expected " +
           std::to_string(num_ids * kFloatBytes) + " (float32, one for each of " +
           std::to_string(num_ids) + " IDs)");
  }
  *view = {raw.lengths.data(), raw.values.data(), weighted ? raw.weights.data() : nullptr,
           static_cast<std::int64_t>(num_ids), false};
  num_ids_ += view->num_ids;
}

void SparseCheck::Total() const { CheckSizes(limits_, num_rows_, num_ids_, 0); }

void SparseCheck::Lengths(std::size_t input, const SparseView& view) {
  std::int64_t sum = 0;
  std::int32_t signs = 0;
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    const auto length = NumberAt<std::int32_t>(view.lengths, row);
    signs |= length;
    sum += length;
  }
  if (signs < 0) {
    std::int64_t row = 0;
    while (NumberAt<std::int32_t>(view.lengths, row) >= 0) ++row;
    Refuse(At(input, "lengths") + std::to_string(NumberAt<std::int32_t>(view.lengths, row)) +
           " in row " + std::to_string(row) + ", expected 0 or more");
  }
  if (sum != view.num_ids && !wrong_sum_) wrong_sum_ = {input, view.num_ids, sum};
}

void SparseCheck::EndOfLengths() const {
  if (!wrong_sum_) return;
  Refuse(At(wrong_sum_->input, "values") + std::to_string(wrong_sum_->num_ids) + " IDs, expected " +
         std::to_string(wrong_sum_->sum) + " (the sum of its lengths)");
}

void SparseCheck::FixedLengths(std::size_t input, const SparseView& view) const {
  const SparseInput& use = signature_.sparse[input];
  if (!use.fixed) return;
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    const auto length = NumberAt<std::int32_t>(view.lengths, row);
    if (length == *use.num_ids) continue;
    Refuse(At(input, "lengths") + std::to_string(length) + " in row " + std::to_string(row) +
           ", expected " + std::to_string(*use.num_ids) + ", as many as the model takes");
  }
}

void SparseCheck::MostIds(std::size_t input, const SparseView& view) const {
  const SparseInput& use = signature_.sparse[input];
  if (!use.max_ids) return;
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    const auto length = NumberAt<std::int32_t>(view.lengths, row);
    if (length <= *use.max_ids) continue;
    Refuse(At(input, "lengths") + std::to_string(length) + " in row " + std::to_string(row) +
           ", expected at most " + std::to_string(*use.max_ids) +
           ": the model crosses the feature");
  }
}

std::int64_t* SparseCheck::Texts(std::size_t input, const RawSparse& raw, std::int64_t* ids,
                                 SparseView* view) const {
  if (raw.texts.num_texts == 0) return ids;
  const SparseInput& use = signature_.sparse[input];
  if (const std::optional<WrongText> wrong = WriteIdsOfTexts(use, raw.texts, ids)) {
    std::string expected = "a text of at least one byte; leave a missing value out";
    if (wrong->is_list) {
      expected = "one value, not a list as tables have it with " + Repr(use.separator) +
                 " between values: send each value as a text of its own";
    } else if (use.strings.empty()) {
      expected = "a decimal int64: the model has no hash for texts of this input";
    }
    Refuse(At(input, "strings") + Short(wrong->text) + " at position " +
           std::to_string(wrong->position) + ", expected " + expected);
  }
  view->values = reinterpret_cast<const char*>(ids);
  return ids + raw.texts.num_texts;
}

void SparseCheck::Ids(std::size_t input, const SparseView& view) const {
  // First all at once, without a branch per ID: nearly all requests are valid.
  const std::uint64_t largest = id_bounds_[input].largest;
  std::uint64_t bad = 0;
  for (std::int64_t i = 0; i < view.num_ids; ++i) {
    bad |= NumberAt<std::uint64_t>(view.values, i) > largest ? 1U : 0U;
  }
  if (bad != 0) RefuseId(input, view);
}

void SparseCheck::RefuseId(std::size_t input, const SparseView& view) const {
  std::int64_t at = 0;
  while (NumberAt<std::uint64_t>(view.values, at) <= id_bounds_[input].largest) ++at;
  std::int64_t row = 0;
  for (std::int64_t end = 0; row < num_rows_; ++row) {
    end += NumberAt<std::int32_t>(view.lengths, row);
    if (at < end) break;
  }
  Refuse(At(input, "values") + "ID " + std::to_string(NumberAt<std::int64_t>(view.values, at)) +
         " in row " + std::to_string(row) + ", expected 0 <= ID < " +
         std::to_string(id_bounds_[input].largest + 1) + " (rows of table " +
         id_bounds_[input].tables + ")");
}

void SparseCheck::Weights(std::size_t input, const SparseView& view) const {
  if (!finite_ || view.weights == nullptr) return;
  const std::int64_t at = FirstNonFinite(view.weights, view.num_ids);
  if (at == view.num_ids) return;
  Refuse(At(input, "weights") + NonFiniteText(view.weights, at) + " at position " +
         std::to_string(at) + ", expected finite numbers");
}

}  // namespace recsys
