#include "recsys/model.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "base/allocator.h"
#include "model/parts.h"
#include "model/predicting.h"
#include "recsys/batch_writer.h"
#include "recsys/error.h"

namespace recsys {

Model::Model(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

Model::~Model() {
  if (parts_ == nullptr) return;
  parts_.reset();
  ReturnMemory();
}

const Signature& Model::signature() const { return parts_->signature(); }
const ModelDescription& Model::description() const { return parts_->description; }
const VerifiedRows& Model::verified_rows() const {
  static const VerifiedRows none;
  return parts_->answers ? parts_->answers->rows() : none;
}
std::string Model::rows_state() const { return parts_->rows->state(); }

ContextCacheCounts Model::context_cache() const {
  return parts_->context_cache == nullptr ? ContextCacheCounts() : parts_->context_cache->counts();
}
void Model::ResetContextCacheCounts() {
  if (parts_->context_cache != nullptr) parts_->context_cache->ResetCounts();
}

OutsideRowsCounts Model::outside_rows() const {
  const std::shared_ptr<StoredRows>& outside = parts_->rows->outside;
  return outside == nullptr ? OutsideRowsCounts() : outside->counts();
}

Outputs Model::Predict(const Batch& batch) const {
  if (parts_->rows->file != nullptr) parts_->rows->file->Check();
  if (batch.is_ranking && parts_->graphs->ranking() == nullptr) {
    throw Error(ErrorKind::kTarget,
                "signature.context: got none, expected inputs: the model has no ranking form");
  }
  if (batch.num_rows == 0) return NoRows(signature());
  const c10::InferenceMode guard;
  // A thread adopts the number of intra-op threads when it first queries it. Operators that use MKL
  // or oneDNN do not query it: in a new thread they would start as many threads as there are
  // processors.
  static_cast<void>(at::get_num_threads());
  try {
    const std::vector<c10::IValue> inputs = GraphInputs(batch, signature());
    const LoadedGraphs& graphs = *parts_->graphs;
    const Callable& graph = batch.is_ranking ? *graphs.ranking() : graphs.plain();
    return CheckedOutputs(graph.Call(inputs), signature(), batch.num_rows, inputs);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw GraphError(error.what());
  }
}

Outputs Model::Predict(const RawRequest& request) const {
  CheckedRequest checked;
  parts_->checker->Check(request, &checked);
  BatchWriter writer(signature());
  const CheckedRequest* const one = &checked;
  return Predict(writer.Write({&one, 1}));
}

}  // namespace recsys
