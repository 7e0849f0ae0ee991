#include "engine/core/cut_request.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

namespace recsys {
namespace {

constexpr std::int64_t kLengthBytes = sizeof(std::int32_t);
constexpr std::int64_t kIdBytes = sizeof(std::int64_t);
constexpr std::int64_t kFloatBytes = sizeof(float);

/// Returns the sum of so many lengths, which may lie unaligned.
std::int64_t SumOf(const char* lengths, std::int64_t num) {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < num; ++i) {
    std::int32_t length = 0;
    std::memcpy(&length, lengths + kLengthBytes * i, sizeof(length));
    sum += length;
  }
  return sum;
}

/// Appends the numbers of one output of all parts.
template <typename T>
Span<const T> Append(const std::vector<CutRequest::Part>& parts,
                     std::vector<Span<const T>> Outputs::*of, std::size_t output,
                     std::vector<T>* joined) {
  for (const CutRequest::Part& part : parts) {
    const std::vector<Span<const T>>& values = part.outputs.*of;
    if (output < values.size()) {
      joined->insert(joined->end(), values[output].begin(), values[output].end());
    }
  }
  return {joined->data(), joined->size()};
}

/// The numbers of all outputs.
struct Numbers {
  std::vector<std::vector<float>> values;
  std::vector<std::vector<std::int64_t>> integers;
};

}  // namespace

CheckedRequest RowsOf(const CheckedRequest& request, const Signature& signature, std::int64_t begin,
                      std::int64_t end) {
  CheckedRequest rows = request;
  rows.num_rows = end - begin;
  for (std::size_t i = 0; i < rows.dense.size(); ++i) {
    DenseView& view = rows.dense[i];
    const DenseInput& input = signature.dense[i];
    const bool is_once = request.has_context && signature.InContext(input.name);
    if (!view.repeat && !is_once) view.values += kFloatBytes * input.width * begin;
  }
  std::int64_t num_ids = 0;
  for (SparseView& view : rows.sparse) {
    if (!view.repeat) {
      const std::int64_t num_before = SumOf(view.lengths, begin);
      view.lengths += kLengthBytes * begin;
      view.values += kIdBytes * num_before;
      if (view.weights != nullptr) view.weights += kFloatBytes * num_before;
      view.num_ids = SumOf(view.lengths, rows.num_rows);
    }
    num_ids += view.num_ids * (view.repeat ? rows.num_rows : 1);
  }
  rows.num_ids = num_ids + NumContextIds(request);
  return rows;
}

std::int64_t NumContextIds(const CheckedRequest& request) {
  std::int64_t num_ids = 0;
  for (const SparseView& view : request.context) num_ids += view.num_ids;
  return num_ids;
}

CutRequest::CutRequest(const CheckedRequest& request, const Signature& signature, int num_parts)
    : signature_(signature), parts_(static_cast<std::size_t>(num_parts)) {
  std::int64_t begin = 0;
  for (int i = 0; i < num_parts; ++i) {
    const std::int64_t end = request.num_rows * (i + 1) / num_parts;
    parts_[static_cast<std::size_t>(i)].checked = RowsOf(request, signature, begin, end);
    begin = end;
  }
}

bool CutRequest::has_unclaimed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !is_closed_ && !is_held_ && num_claimed_ < parts_.size();
}

void CutRequest::ShareContext(std::function<void()> on_free) {
  on_free_ = std::move(on_free);
  is_held_ = true;
}

SharedContext::Values CutRequest::Find() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return context_;
}

void CutRequest::Add(Values values) { Free(std::move(values)); }

void CutRequest::Free(Values values) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!std::exchange(is_held_, false)) return;
    context_ = std::move(values);
  }
  try {
    on_free_();
  } catch (...) {
    // There is no memory for another thread: the first one computes all parts.
  }
}

CutRequest::Part* CutRequest::Claim() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_ || num_claimed_ == parts_.size() || (is_held_ && num_claimed_ > 0)) return nullptr;
  Part& part = parts_[num_claimed_++];
  part.has_context_values = context_ != nullptr;
  return &part;
}

void CutRequest::Done(Part* part) {
  if (part->failure == nullptr) Free(nullptr);
  const std::lock_guard<std::mutex> lock(mutex_);
  // The answer is an error: what is left need not be computed.
  if (part->failure != nullptr) is_closed_ = true;
  if (++num_done_ == num_claimed_) done_.notify_all();
}

void CutRequest::WaitUntilDone() {
  std::unique_lock<std::mutex> lock(mutex_);
  is_closed_ = true;
  done_.wait(lock, [this] { return num_done_ == num_claimed_; });
}

Outputs CutRequest::Joined() const {
  for (const Part& part : parts_) {
    if (part.failure != nullptr) std::rethrow_exception(part.failure);
  }
  const auto numbers = std::make_shared<Numbers>();
  const std::size_t num_outputs = signature_.outputs.size();
  numbers->values.resize(num_outputs);
  numbers->integers.resize(num_outputs);
  Outputs joined;
  for (std::size_t i = 0; i < num_outputs; ++i) {
    joined.values.push_back(Append(parts_, &Outputs::values, i, &numbers->values[i]));
    joined.integers.push_back(Append(parts_, &Outputs::integers, i, &numbers->integers[i]));
  }
  joined.owner = numbers;
  return joined;
}

}  // namespace recsys
