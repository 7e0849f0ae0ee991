#include "engine/core/warm_up.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

namespace recsys {
namespace {

struct Size {
  std::int64_t num_requests;
  std::int64_t num_rows;
};
// Batches of one request and of several.
constexpr Size kSizes[] = {{1, 1}, {1, 2}, {2, 1}, {8, 1}, {32, 1}, {1, 64}, {128, 1}};
// Where a batch is one request, the model may take few numbers of rows; exports verify two.
constexpr Size kByRequest = {1, 2};

/// The memory that a made request's views point into; shared by its inputs where possible.
struct Memory {
  std::vector<float> zeros;
  std::vector<float> ones;
  std::vector<std::vector<std::int32_t>> lengths;
  std::vector<std::vector<std::int64_t>> ids;
};

const char* BytesOf(const void* data) { return static_cast<const char*>(data); }

/// Returns IDs spread over a table, so that its pages are read in.
std::vector<std::int64_t> SpreadIds(std::int64_t limit, std::int64_t num) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(num));
  const double last = static_cast<double>(limit - 1);
  for (std::int64_t i = 0; i + 1 < num; ++i) {
    ids[static_cast<std::size_t>(i)] =
        static_cast<std::int64_t>(static_cast<double>(i) * last / static_cast<double>(num - 1));
  }
  if (num > 1) ids.back() = limit - 1;
  return ids;
}

std::int64_t NumIdsOfBag(const SparseInput& input) { return input.num_ids.value_or(1); }

/// Returns an input with one ID in each bag, or as many as the model takes.
SparseView MakeSparse(const SparseInput& input, std::int64_t num_bags, bool is_weighted,
                      Memory* memory) {
  const std::int64_t limit = input.id_limit().value_or(1);
  const std::int64_t num_ids = num_bags * NumIdsOfBag(input);
  memory->ids.push_back(SpreadIds(limit > 0 ? limit : 1, num_ids));
  memory->lengths.emplace_back(num_bags, static_cast<std::int32_t>(NumIdsOfBag(input)));
  SparseView view;
  view.lengths = BytesOf(memory->lengths.back().data());
  view.values = BytesOf(memory->ids.back().data());
  view.weights = is_weighted ? BytesOf(memory->ones.data()) : nullptr;
  view.num_ids = num_ids;
  return view;
}

OwnedRequest MakeRequest(const Signature& signature, std::int64_t num_rows, bool has_context) {
  auto memory = std::make_shared<Memory>();
  std::int64_t width = 0, num_ids = 0;
  for (const DenseInput& input : signature.dense) width = std::max(width, input.width);
  for (const SparseInput& input : signature.sparse) num_ids = std::max(num_ids, NumIdsOfBag(input));
  const auto rows = static_cast<std::size_t>(num_rows);
  memory->zeros.resize(rows * static_cast<std::size_t>(width));
  memory->ones.assign(rows * static_cast<std::size_t>(num_ids), 1.0F);
  // Views point into the inner vectors, so the outer ones must not reallocate.
  memory->lengths.reserve(signature.sparse.size());
  memory->ids.reserve(signature.sparse.size());

  OwnedRequest request;
  CheckedRequest& checked = request.checked;
  checked.num_rows = num_rows;
  checked.has_context = has_context;
  checked.dense.assign(signature.dense.size(), {BytesOf(memory->zeros.data()), false});
  for (const SparseInput& input : signature.sparse) {
    const bool is_shared = has_context && signature.InContext(input.name);
    const SparseView view =
        MakeSparse(input, is_shared ? 1 : num_rows, signature.is_weighted(), memory.get());
    (is_shared ? checked.context : checked.sparse).push_back(view);
    checked.num_ids += view.num_ids;
  }
  request.owner = std::move(memory);
  return request;
}

bool Fits(std::int64_t num_rows, std::int64_t num_ids, const BatchLimits& limits) {
  return num_rows <= limits.max_batch_rows && num_ids <= limits.max_batch_ids;
}

void Add(const Size& size, const Signature& signature, const BatchLimits& limits, bool has_context,
         std::vector<WarmUpBatch>* batches) {
  const OwnedRequest request = MakeRequest(signature, size.num_rows, has_context);
  const std::int64_t num_rows = size.num_requests * size.num_rows;
  const std::int64_t num_ids = size.num_requests * request.checked.num_ids;
  if (num_rows > 1 && !Fits(num_rows, num_ids, limits)) return;
  const WarmUpBatch batch(static_cast<std::size_t>(size.num_requests), request);
  // Code is specialised anew during the first few calls.
  batches->push_back(batch);
  batches->push_back(batch);
}

void AddMade(const Signature& signature, const BatchLimits& limits, bool has_context,
             std::vector<WarmUpBatch>* batches) {
  if (signature.by_request) return Add(kByRequest, signature, limits, has_context, batches);
  for (const Size& size : kSizes) Add(size, signature, limits, has_context, batches);
}

}  // namespace

std::vector<WarmUpBatch> MadeBatches(const Signature& signature, const BatchLimits& limits) {
  std::vector<WarmUpBatch> batches;
  AddMade(signature, limits, false, &batches);
  if (!signature.context.empty()) AddMade(signature, limits, true, &batches);
  return batches;
}

}  // namespace recsys
