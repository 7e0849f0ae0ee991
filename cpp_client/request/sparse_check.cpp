#include "request/sparse_check.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "recsys/error.h"
#include "request/dense_check.h"
#include "request/texts.h"

namespace recsys {
namespace {

constexpr std::size_t kLengthBytes = 4, kIdBytes = 8, kFloatBytes = 4;

template <typename T>
T At(const char* data, std::int64_t at) {
  T value;
  std::memcpy(&value, data + static_cast<std::size_t>(at) * sizeof(T), sizeof(T));
  return value;
}

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kRequest, text); }

}  // namespace

void CheckSameLengths(const Signature& signature, const SameLengths& same, BagLengths lengths,
                      BagLengths others, std::int64_t num_rows) {
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const auto got = At<std::int32_t>(lengths.lengths, lengths.once ? 0 : row);
    const auto expected = At<std::int32_t>(others.lengths, others.once ? 0 : row);
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
    const auto length = recsys::At<std::int32_t>(view.lengths, row);
    signs |= length;
    sum += length;
  }
  if (signs < 0) {
    std::int64_t row = 0;
    while (recsys::At<std::int32_t>(view.lengths, row) >= 0) ++row;
    Refuse(At(input, "lengths") + std::to_string(recsys::At<std::int32_t>(view.lengths, row)) +
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
    const auto length = recsys::At<std::int32_t>(view.lengths, row);
    if (length == *use.num_ids) continue;
    Refuse(At(input, "lengths") + std::to_string(length) + " in row " + std::to_string(row) +
           ", expected " + std::to_string(*use.num_ids) + ", as many as the model takes");
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
    bad |= recsys::At<std::uint64_t>(view.values, i) > largest ? 1U : 0U;
  }
  if (bad != 0) RefuseId(input, view);
}

void SparseCheck::RefuseId(std::size_t input, const SparseView& view) const {
  std::int64_t at = 0;
  while (recsys::At<std::uint64_t>(view.values, at) <= id_bounds_[input].largest) ++at;
  std::int64_t row = 0;
  for (std::int64_t end = 0; row < num_rows_; ++row) {
    end += recsys::At<std::int32_t>(view.lengths, row);
    if (at < end) break;
  }
  Refuse(At(input, "values") + "ID " + std::to_string(recsys::At<std::int64_t>(view.values, at)) +
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
