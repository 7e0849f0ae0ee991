#include "engine/core/executor/warm_up.h"

#include <cstdint>
#include <memory>
#include <utility>

namespace recsys {
namespace {

struct Size {
  std::int64_t num_requests;
  std::int64_t num_rows;
};
// Batches of one request and of several: those of recsys/artifact/batches/answers.py, with which
// exports try the model. The tests of both read tests/cases/warm_up_sizes.txt.
constexpr Size kSizes[] = {{1, 1}, {1, 2}, {2, 1}, {8, 1}, {32, 1}, {1, 64}, {128, 1}};
// Where a batch is one request, the model may take few numbers of rows; exports verify two.
constexpr Size kByRequest = {1, 2};

/// The memory that a request's views point into.
struct Memory {
  std::vector<std::vector<float>> dense;
  std::vector<std::vector<std::int32_t>> lengths;
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<std::vector<float>> weights;
};

template <typename Number>
const char* BytesOf(const std::vector<Number>& numbers) {
  return reinterpret_cast<const char*>(numbers.data());
}

/// Appends a part of `from` to `to`.
template <typename Number>
void Append(const std::vector<Number>& from, std::int64_t start, std::int64_t count,
            std::vector<Number>* to) {
  const auto first = from.begin() + start;
  to->insert(to->end(), first, first + count);
}

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

/// Makes requests for one model: of rows that its export has verified, one after the other and from
/// the first again behind the last, or of zeros and spread IDs if there are none.
class Maker {
 public:
  Maker(const Signature& signature, const VerifiedRows& rows) : signature_(signature), rows_(rows) {
    std::int64_t end = 0;
    for (const std::int64_t length : rows.lengths) {
      starts_.push_back(end);
      end += length;
    }
  }

  /// Returns a request that begins with the row `first`.
  OwnedRequest Make(std::int64_t first, std::int64_t num_rows, bool has_context) const {
    auto memory = std::make_shared<Memory>();
    OwnedRequest request;
    CheckedRequest& checked = request.checked;
    checked.num_rows = num_rows;
    checked.has_context = has_context;
    for (std::size_t i = 0; i < signature_.dense.size(); ++i) {
      const DenseInput& input = signature_.dense[i];
      const bool is_shared = has_context && signature_.InContext(input.name);
      memory->dense.push_back(Dense(i, first, is_shared ? 1 : num_rows));
      checked.dense.push_back({BytesOf(memory->dense.back()), false});
    }
    for (std::size_t i = 0; i < signature_.sparse.size(); ++i) {
      const bool is_shared = has_context && signature_.InContext(signature_.sparse[i].name);
      const SparseView view = Sparse(i, first, is_shared ? 1 : num_rows, memory.get());
      (is_shared ? checked.context : checked.sparse).push_back(view);
      checked.num_ids += view.num_ids;
    }
    request.owner = std::move(memory);
    return request;
  }

 private:
  std::int64_t Row(std::int64_t number) const { return number % rows_.num_rows; }

  std::vector<float> Dense(std::size_t input, std::int64_t first, std::int64_t num_rows) const {
    const std::int64_t width = signature_.dense[input].width;
    if (rows_.num_rows == 0) return std::vector<float>(static_cast<std::size_t>(num_rows * width));
    std::vector<float> found;
    for (std::int64_t i = first; i < first + num_rows; ++i) {
      Append(rows_.dense[input], Row(i) * width, width, &found);
    }
    return found;
  }

  SparseView Sparse(std::size_t input, std::int64_t first, std::int64_t num_bags,
                    Memory* memory) const {
    std::vector<std::int32_t> lengths;
    std::vector<std::int64_t> ids;
    std::vector<float> weights;
    if (rows_.num_rows == 0) {
      const std::int64_t length = signature_.sparse[input].num_ids.value_or(1);
      const std::int64_t limit = signature_.sparse[input].id_limit().value_or(1);
      lengths.assign(static_cast<std::size_t>(num_bags), static_cast<std::int32_t>(length));
      ids = SpreadIds(limit > 0 ? limit : 1, num_bags * length);
      if (signature_.is_weighted()) weights.assign(ids.size(), 1.0F);
    }
    for (std::int64_t i = first; rows_.num_rows > 0 && i < first + num_bags; ++i) {
      const auto bag =
          static_cast<std::size_t>(static_cast<std::int64_t>(input) * rows_.num_rows + Row(i));
      const std::int64_t length = rows_.lengths[bag];
      lengths.push_back(static_cast<std::int32_t>(length));
      Append(rows_.values, starts_[bag], length, &ids);
      if (signature_.is_weighted()) Append(rows_.weights, starts_[bag], length, &weights);
    }
    // A moved vector keeps its memory, so the views stay valid while the outer vectors grow.
    memory->lengths.push_back(std::move(lengths));
    memory->ids.push_back(std::move(ids));
    memory->weights.push_back(std::move(weights));
    SparseView view;
    view.lengths = BytesOf(memory->lengths.back());
    view.values = BytesOf(memory->ids.back());
    view.weights = signature_.is_weighted() ? BytesOf(memory->weights.back()) : nullptr;
    view.num_ids = static_cast<std::int64_t>(memory->ids.back().size());
    return view;
  }

  const Signature& signature_;
  const VerifiedRows& rows_;
  /// Where each bag's IDs begin.
  std::vector<std::int64_t> starts_;
};

bool Fits(std::int64_t num_rows, std::int64_t num_ids, const BatchLimits& limits) {
  return num_rows <= limits.max_batch_rows && num_ids <= limits.max_batch_ids;
}

void Add(const Size& size, const Maker& maker, const BatchLimits& limits, bool has_context,
         std::vector<WarmUpBatch>* batches) {
  const std::int64_t num_rows = size.num_requests * size.num_rows;
  std::int64_t num_ids = 0;
  WarmUpBatch batch;
  for (std::int64_t i = 0; i < size.num_requests; ++i) {
    batch.push_back(maker.Make(i * size.num_rows, size.num_rows, has_context));
    num_ids += batch.back().checked.num_ids;
    if (num_rows > 1 && !Fits(num_rows, num_ids, limits)) return;
  }
  // Code is specialised again during the first few calls.
  batches->push_back(batch);
  batches->push_back(std::move(batch));
}

}  // namespace

std::vector<WarmUpBatch> WarmUpBatches(const Signature& signature, const BatchLimits& limits,
                                       const VerifiedRows& rows) {
  const Maker maker(signature, rows);
  std::vector<WarmUpBatch> batches;
  for (const bool has_context : {false, true}) {
    if (has_context && signature.context.empty()) continue;
    if (signature.by_request) {
      Add(kByRequest, maker, limits, has_context, &batches);
      continue;
    }
    for (const Size& size : kSizes) Add(size, maker, limits, has_context, &batches);
  }
  return batches;
}

}  // namespace recsys
