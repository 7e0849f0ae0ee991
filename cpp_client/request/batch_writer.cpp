#include "recsys/batch_writer.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "recsys/error.h"

namespace recsys {
namespace {

/// Returns the first `size` elements of a buffer that only grows: they are overwritten, and not
/// zeroed first.
template <typename T>
Span<T> Room(std::size_t size, std::vector<T>* memory) {
  if (memory->size() < size) memory->resize(std::max(size, 2 * memory->size()));
  return Span<T>(memory->data(), size);
}

template <typename T>
T* Copied(const char* from, std::size_t num, T* to) {
  if (num > 0) std::memcpy(to, from, num * sizeof(T));
  return to + num;
}

std::int64_t* WriteLengths(const SparseView& view, std::int64_t num_bags, std::int64_t* to) {
  for (std::int64_t bag = 0; bag < num_bags; ++bag) {
    std::int32_t length = 0;
    std::memcpy(&length, view.lengths + (view.repeat ? 0 : 4 * bag), sizeof(length));
    *to++ = length;
  }
  return to;
}

float* WriteWeights(const SparseView& view, float* to) {
  const auto num = static_cast<std::size_t>(view.num_ids);
  return view.weights == nullptr ? std::fill_n(to, num, 1.0F) : Copied(view.weights, num, to);
}

using Requests = Span<const CheckedRequest* const>;

/// Where a batch's sparse inputs of one kind are written, and which inputs of a request they are.
struct SparsePart {
  std::vector<SparseView> CheckedRequest::*views;
  /// Whether each has one bag per request.
  bool is_context;
  std::vector<std::int64_t>* lengths;
  std::vector<std::int64_t>* values;
  /// Null if the signature is not weighted.
  std::vector<float>* weights;

  std::int64_t NumBags(const CheckedRequest& request) const {
    return is_context ? 1 : request.num_rows;
  }
  std::int64_t NumTimes(const CheckedRequest& request, const SparseView& view) const {
    return view.repeat ? request.num_rows : 1;
  }
  SparseBatch Write(Requests requests) const;

 private:
  void MakeRoom(Requests requests, SparseBatch* batch) const;
};

void SparsePart::MakeRoom(Requests requests, SparseBatch* batch) const {
  std::int64_t num_lengths = 0, num_ids = 0;
  for (const CheckedRequest* request : requests) {
    const std::vector<SparseView>& found = request->*views;
    num_lengths += NumBags(*request) * static_cast<std::int64_t>(found.size());
    for (const SparseView& view : found) num_ids += view.num_ids * NumTimes(*request, view);
  }
  batch->lengths = Room(static_cast<std::size_t>(num_lengths), lengths);
  batch->values = Room(static_cast<std::size_t>(num_ids), values);
  if (weights != nullptr) batch->weights = Room(static_cast<std::size_t>(num_ids), weights);
}

SparseBatch SparsePart::Write(Requests requests) const {
  SparseBatch batch;
  MakeRoom(requests, &batch);
  std::int64_t* length = batch.lengths.data();
  std::int64_t* value = batch.values.data();
  float* weight = batch.weights.data();
  const std::size_t num_inputs = (requests[0]->*views).size();
  for (std::size_t input = 0; input < num_inputs; ++input) {
    for (const CheckedRequest* request : requests) {
      const SparseView& view = (request->*views)[input];
      length = WriteLengths(view, NumBags(*request), length);
      for (std::int64_t time = 0; time < NumTimes(*request, view); ++time) {
        value = Copied(view.values, static_cast<std::size_t>(view.num_ids), value);
        if (weights != nullptr) weight = WriteWeights(view, weight);
      }
    }
  }
  return batch;
}

/// Writes one dense input of all requests; `once`: each request has one row of it, for the ranking
/// graph.
Span<float> WriteDense(Requests requests, std::size_t input, std::int64_t width, bool once,
                       std::vector<float>* memory) {
  const auto rows_of = [&](const CheckedRequest& request) { return once ? 1 : request.num_rows; };
  std::int64_t num_rows = 0;
  for (const CheckedRequest* request : requests) num_rows += rows_of(*request);
  const Span<float> batch = Room(static_cast<std::size_t>(num_rows * width), memory);
  float* to = batch.data();
  for (const CheckedRequest* request : requests) {
    const DenseView& view = request->dense[input];
    const std::int64_t times = view.repeat ? rows_of(*request) : 1;
    const std::int64_t num = view.repeat ? width : width * rows_of(*request);
    for (std::int64_t time = 0; time < times; ++time) {
      to = Copied(view.values, static_cast<std::size_t>(num), to);
    }
  }
  return batch;
}

}  // namespace

BatchWriter::BatchWriter(const Signature& signature) : signature_(signature) {
  memory_.dense.resize(signature_.dense.size());
  batch_.dense.resize(signature_.dense.size());
}

const Batch& BatchWriter::Write(Requests requests) {
  if (signature_.by_request && requests.size() > 1) {
    throw Error(ErrorKind::kRequest, "batch: got " + std::to_string(requests.size()) +
                                         " requests, expected one: the model was exported with "
                                         "--batch request, so its rows may depend on each other");
  }
  const bool is_ranking = requests[0]->has_context;
  const bool is_weighted = signature_.is_weighted();
  batch_.num_rows = 0;
  for (const CheckedRequest* request : requests) batch_.num_rows += request->num_rows;
  for (std::size_t i = 0; i < batch_.dense.size(); ++i) {
    const DenseInput& input = signature_.dense[i];
    const bool once = is_ranking && signature_.InContext(input.name);
    batch_.dense[i] = WriteDense(requests, i, input.width, once, &memory_.dense[i]);
  }
  batch_.sparse = SparsePart{&CheckedRequest::sparse, false, &memory_.lengths, &memory_.values,
                             is_weighted ? &memory_.weights : nullptr}
                      .Write(requests);
  batch_.is_ranking = is_ranking;
  batch_.num_contexts = 0;
  batch_.context = {};
  batch_.row_context = {};
  if (!is_ranking) return batch_;
  batch_.num_contexts = static_cast<std::int64_t>(requests.size());
  batch_.context =
      SparsePart{&CheckedRequest::context, true, &memory_.context_lengths, &memory_.context_values,
                 is_weighted ? &memory_.context_weights : nullptr}
          .Write(requests);
  batch_.row_context = Room(static_cast<std::size_t>(batch_.num_rows), &memory_.row_context);
  std::int64_t* to = batch_.row_context.data();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    to = std::fill_n(to, requests[i]->num_rows, static_cast<std::int64_t>(i));
  }
  return batch_;
}

}  // namespace recsys
