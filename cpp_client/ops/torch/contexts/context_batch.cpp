#include "ops/torch/contexts/context_batch.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/hash/xxh64.h"

namespace recsys::ops {
namespace {

bool IsPlain(const at::Tensor& tensor, at::ScalarType type, std::int64_t dim) {
  return tensor.scalar_type() == type && tensor.dim() == dim && tensor.is_contiguous();
}

template <typename Number>
void Append(const Number* from, std::int64_t count, std::string* to) {
  to->append(reinterpret_cast<const char*>(from), static_cast<std::size_t>(count) * sizeof(Number));
}

}  // namespace

bool ContextBatch::Read(const ContextInputs& from, const std::vector<at::Tensor>& inputs) {
  from_ = &from;
  inputs_ = &inputs;
  if (!ReadSizes()) return false;
  // One context that nothing keeps need not be known.
  if (from.cache == nullptr && num_contexts_ == 1) return false;
  if (!ReadIds() || !ReadRows()) return false;
  WriteKeys();
  return true;
}

bool ContextBatch::ReadSizes() {
  if (from_->num_features > 0) {
    num_contexts_ = lengths().numel() / from_->num_features;
  } else if (!from_->dense.empty()) {
    const at::Tensor& dense = (*inputs_)[from_->dense[0]];
    num_contexts_ = dense.dim() == 0 ? 0 : dense.size(0);
  }
  return num_contexts_ > 0 &&
         std::all_of(from_->dense.begin(), from_->dense.end(), [this](std::size_t at) {
           const at::Tensor& dense = (*inputs_)[at];
           return IsPlain(dense, at::kFloat, 2) && dense.size(0) == num_contexts_;
         });
}

bool ContextBatch::ReadIds() {
  const std::int64_t count = from_->num_features * num_contexts_;
  if (!IsPlain(lengths(), at::kLong, 1) || !IsPlain(values(), at::kLong, 1) ||
      lengths().numel() != count) {
    return false;
  }
  const std::int64_t num_ids = values().numel();
  if (from_->is_weighted && (!IsPlain(weights(), at::kFloat, 1) || weights().numel() != num_ids)) {
    return false;
  }
  const std::int64_t* const numbers = lengths().const_data_ptr<std::int64_t>();
  offsets_.resize(static_cast<std::size_t>(count) + 1);
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (numbers[i] < 0 || numbers[i] > num_ids - sum) return false;
    sum += numbers[i];
    offsets_[static_cast<std::size_t>(i) + 1] = sum;
  }
  return sum == num_ids;
}

bool ContextBatch::ReadRows() const {
  const at::Tensor& rows = inputs_->back();
  if (!IsPlain(rows, at::kLong, 1)) return false;
  const std::int64_t* const numbers = rows.const_data_ptr<std::int64_t>();
  return std::all_of(numbers, numbers + rows.numel(),
                     [this](std::int64_t number) { return number >= 0 && number < num_contexts_; });
}

void ContextBatch::WriteKey(std::int64_t context, std::string* to) const {
  // How many bytes each part has is known by the lengths, so no two contexts have one key.
  const std::int64_t* const lengths_at = lengths().const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < from_->num_features; ++i) {
    if (i != from_->growing) Append(lengths_at + i * num_contexts_ + context, 1, to);
  }
  for (std::int64_t i = 0; i < from_->num_features; ++i) {
    if (i != from_->growing) AppendBag(i, context, to);
  }
  for (const std::size_t at : from_->dense) {
    const at::Tensor& dense = (*inputs_)[at];
    const std::int64_t width = dense.size(1);
    Append(dense.const_data_ptr<float>() + context * width, width, to);
  }
  // All before it has as many bytes as the lengths say.
  if (from_->growing >= 0) AppendBag(from_->growing, context, to);
}

void ContextBatch::AppendBag(std::int64_t feature, std::int64_t context, std::string* to) const {
  const auto bag = static_cast<std::size_t>(feature * num_contexts_ + context);
  const std::int64_t start = offsets_[bag], count = offsets_[bag + 1] - start;
  Append(values().const_data_ptr<std::int64_t>() + start, count, to);
  if (from_->is_weighted) Append(weights().const_data_ptr<float>() + start, count, to);
}

std::int64_t ContextBatch::NumGrowing(std::size_t key) const {
  const auto bag = static_cast<std::size_t>(from_->growing * num_contexts_ + firsts_[key]);
  return offsets_[bag + 1] - offsets_[bag];
}

void ContextBatch::WriteKeys() {
  std::vector<std::size_t> ends;
  bytes_.clear();
  for (std::int64_t context = 0; context < num_contexts_; ++context) {
    WriteKey(context, &bytes_);
    ends.push_back(bytes_.size());
  }
  std::vector<ContextKey> all;
  std::size_t start = 0;
  for (const std::size_t end : ends) {
    const std::string_view bytes = std::string_view(bytes_).substr(start, end - start);
    all.push_back({bytes, Xxh64(bytes)});
    start = end;
  }
  FindEqual(all);
}

void ContextBatch::FindEqual(const std::vector<ContextKey>& all) {
  std::unordered_map<std::uint64_t, std::size_t, SecretHash> by_hash;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto [found, is_new] = by_hash.try_emplace(all[i].hash, keys_.size());
    // Of contexts that differ and have one hash, which is rare, the later ones are not merged.
    if (is_new || keys_[found->second].bytes != all[i].bytes) {
      places_.push_back(static_cast<std::int64_t>(keys_.size()));
      firsts_.push_back(static_cast<std::int64_t>(i));
      keys_.push_back(all[i]);
    } else {
      places_.push_back(static_cast<std::int64_t>(found->second));
    }
  }
}

std::vector<at::Tensor> ContextBatch::Distinct() const {
  if (keys_.size() == places_.size()) return *inputs_;
  std::vector<at::Tensor> inputs = With(firsts_);
  inputs.back() = Renumbered();
  return inputs;
}

std::vector<at::Tensor> ContextBatch::Some(const std::vector<std::size_t>& places) const {
  std::vector<std::int64_t> contexts;
  contexts.reserve(places.size());
  for (const std::size_t place : places) contexts.push_back(firsts_[place]);
  return With(contexts);
}

std::vector<at::Tensor> ContextBatch::With(const std::vector<std::int64_t>& contexts) const {
  std::vector<at::Tensor> inputs = *inputs_;
  const auto count = static_cast<std::int64_t>(contexts.size());
  for (const std::size_t at : from_->dense) {
    const std::int64_t width = inputs[at].size(1);
    at::Tensor some = at::empty({count, width}, at::kFloat);
    const float* const numbers = inputs[at].const_data_ptr<float>();
    float* to = some.mutable_data_ptr<float>();
    for (const std::int64_t context : contexts) {
      to = std::copy_n(numbers + context * width, width, to);
    }
    inputs[at] = std::move(some);
  }
  at::Tensor some_lengths = at::empty({from_->num_features * count}, at::kLong);
  std::int64_t* length = some_lengths.mutable_data_ptr<std::int64_t>();
  std::int64_t num_ids = 0;
  for (std::int64_t i = 0; i < from_->num_features; ++i) {
    for (const std::int64_t context : contexts) {
      const auto bag = static_cast<std::size_t>(i * num_contexts_ + context);
      num_ids += * length++ = offsets_[bag + 1] - offsets_[bag];
    }
  }
  at::Tensor some_values = at::empty({num_ids}, at::kLong), some_weights;
  if (from_->is_weighted) some_weights = at::empty({num_ids}, at::kFloat);
  std::int64_t* value = some_values.mutable_data_ptr<std::int64_t>();
  float* weight = from_->is_weighted ? some_weights.mutable_data_ptr<float>() : nullptr;
  for (std::int64_t i = 0; i < from_->num_features; ++i) {
    for (const std::int64_t context : contexts) {
      const auto bag = static_cast<std::size_t>(i * num_contexts_ + context);
      const std::int64_t start = offsets_[bag], size = offsets_[bag + 1] - start;
      value = std::copy_n(values().const_data_ptr<std::int64_t>() + start, size, value);
      if (weight != nullptr) {
        weight = std::copy_n(weights().const_data_ptr<float>() + start, size, weight);
      }
    }
  }
  inputs[from_->lengths] = std::move(some_lengths);
  inputs[from_->lengths + 1] = std::move(some_values);
  if (from_->is_weighted) inputs[from_->lengths + 2] = std::move(some_weights);
  return inputs;
}

at::Tensor ContextBatch::Renumbered() const {
  const at::Tensor& rows = inputs_->back();
  at::Tensor renumbered = at::empty_like(rows);
  const std::int64_t* const numbers = rows.const_data_ptr<std::int64_t>();
  std::transform(numbers, numbers + rows.numel(), renumbered.mutable_data_ptr<std::int64_t>(),
                 [this](std::int64_t number) { return places_[static_cast<std::size_t>(number)]; });
  return renumbered;
}

}  // namespace recsys::ops
