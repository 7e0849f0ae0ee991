#include "engine/protocols/request_memory.h"

#include <utility>

namespace recsys {

RequestMemory& RequestMemory::Shared() {
  static RequestMemory& shared = *new RequestMemory;
  return shared;
}

std::size_t RequestMemory::Take(Request* request) {
  const std::size_t stripe = ThisStripe();
  Kept& kept = kept_[stripe];
  const std::lock_guard lock(kept.mutex);
  if (kept.lists.empty()) return stripe;
  std::swap(request->raw, kept.lists.back().raw);
  std::swap(request->checked, kept.lists.back().checked);
  kept.lists.pop_back();
  return stripe;
}

void RequestMemory::Give(Request* request, std::size_t stripe) {
  RawRequest& raw = request->raw;
  CheckedRequest& checked = request->checked;
  const std::size_t num_inputs = raw.dense.capacity() + raw.sparse.capacity() +
                                 raw.context_dense.capacity() + raw.context_sparse.capacity();
  if (num_inputs == 0 || num_inputs > kMaxInputs) return;
  raw.num_rows = 0;
  raw.dense.clear();
  raw.sparse.clear();
  raw.context_dense.clear();
  raw.context_sparse.clear();
  checked.num_rows = checked.num_ids = checked.spread_bytes = 0;
  checked.dense.clear();
  checked.sparse.clear();
  checked.context.clear();
  checked.ids_of_texts.clear();
  checked.has_context = false;
  Kept& kept = kept_[stripe];
  const std::lock_guard lock(kept.mutex);
  if (kept.lists.size() < kMaxKept) kept.lists.push_back({std::move(raw), std::move(checked)});
}

}  // namespace recsys
