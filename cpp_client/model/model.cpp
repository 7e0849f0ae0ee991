#include "recsys/model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/types.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/allocator.h"
#include "base/text.h"
#include "model/parts.h"
#include "recsys/batch_writer.h"
#include "recsys/error.h"

namespace recsys {
namespace {

template <typename T>
at::Tensor TensorOf(Span<T> values, at::IntArrayRef shape) {
  // Operators may also look at the address of an empty tensor.
  static T nothing{};
  return at::from_blob(values.data() == nullptr ? &nothing : values.data(), shape,
                       at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
}

template <typename T>
at::Tensor TensorOf(Span<T> values) {
  return TensorOf(values, {static_cast<std::int64_t>(values.size())});
}

void AddSparse(const SparseBatch& sparse, bool is_weighted, std::vector<c10::IValue>* inputs) {
  inputs->emplace_back(TensorOf(sparse.lengths));
  inputs->emplace_back(TensorOf(sparse.values));
  if (is_weighted) inputs->emplace_back(TensorOf(sparse.weights));
}

std::string ShapeText(at::IntArrayRef shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

/// Returns the output of that name; an undefined tensor if there is none.
at::Tensor Find(const c10::IValue& returned, const std::string& name) {
  if (!returned.isGenericDict()) return {};
  const auto dict = returned.toGenericDict();
  if (dict.keyType()->kind() != c10::TypeKind::StringType) return {};
  const auto found = dict.find(name);
  return found != dict.end() && found->value().isTensor() ? found->value().toTensor()
                                                          : at::Tensor();
}

at::Tensor CheckedOutput(const c10::IValue& returned, const Output& output, std::int64_t num_rows) {
  const at::Tensor tensor = Find(returned, output.name);
  const std::vector<std::int64_t> expected = output.Dims(num_rows);
  const bool is_integer = output.type == OutputType::kInt64;
  if (tensor.defined() && tensor.scalar_type() == (is_integer ? at::kLong : at::kFloat) &&
      tensor.sizes() == expected && tensor.device().is_cpu()) {
    return tensor.contiguous();
  }
  const std::string got = !tensor.defined()
                              ? "nothing"
                              : std::string("torch.") +
                                    std::string(c10::getDtypeNames(tensor.scalar_type()).first) +
                                    " " + ShapeText(tensor.sizes());
  throw Error(ErrorKind::kExecution, "output " + Repr(output.name) + ": got " + got +
                                         ", expected " + (is_integer ? "int64 " : "float32 ") +
                                         ShapeText(expected));
}

/// Adds an output's numbers, or nothing at its place where it has another type.
template <typename T>
void AddNumbers(const at::Tensor& tensor, std::vector<Span<const T>>* to) {
  static constexpr T kNothing = 0;
  if (tensor.scalar_type() == c10::CppTypeToScalarType<T>::value) {
    to->emplace_back(tensor.const_data_ptr<T>(), static_cast<std::size_t>(tensor.numel()));
  } else {
    to->emplace_back(&kNothing, 0);
  }
}

/// Converts a batch into the graph's inputs: views of the batch's memory, which the caller keeps
/// owning.
std::vector<c10::IValue> GraphInputs(const Batch& batch, const Signature& signature) {
  const bool is_weighted = signature.is_weighted();
  std::vector<c10::IValue> inputs;
  inputs.reserve(signature.dense.size() + 8);
  for (std::size_t i = 0; i < signature.dense.size(); ++i) {
    const DenseInput& input = signature.dense[i];
    const bool once = batch.is_ranking && signature.InContext(input.name);
    inputs.emplace_back(
        TensorOf(batch.dense[i], {once ? batch.num_contexts : batch.num_rows, input.width}));
  }
  if (batch.is_ranking) AddSparse(batch.context, is_weighted, &inputs);
  AddSparse(batch.sparse, is_weighted, &inputs);
  if (batch.is_ranking) inputs.emplace_back(TensorOf(batch.row_context));
  return inputs;
}

/// Checks the graph's outputs against the signature. Copies an output only if it uses the batch's
/// memory or is not contiguous. Throws Error (kExecution) if an output does not match the
/// signature.
Outputs CheckedOutputs(const c10::IValue& returned, const Signature& signature,
                       std::int64_t num_rows, const std::vector<c10::IValue>& inputs) {
  auto tensors = std::make_shared<std::vector<at::Tensor>>();
  tensors->reserve(signature.outputs.size());
  Outputs outputs;
  const bool has_integers = signature.has_integers();
  for (const Output& output : signature.outputs) {
    at::Tensor tensor = CheckedOutput(returned, output, num_rows);
    const bool is_input = std::any_of(inputs.begin(), inputs.end(), [&](const c10::IValue& input) {
      return input.toTensor().is_alias_of(tensor);
    });
    if (is_input) tensor = tensor.clone();
    AddNumbers(tensor, &outputs.values);
    if (has_integers) AddNumbers(tensor, &outputs.integers);
    tensors->push_back(std::move(tensor));
  }
  outputs.owner = std::move(tensors);
  return outputs;
}

/// Returns the error of a graph: kRequest if an ID that the model computes is no row of its table
/// (recsys/artifact/inputs.py), else kExecution.
Error GraphError(const std::string& text) {
  // The same words stand further up, in the source that torch shows.
  const std::size_t at = text.rfind("computed ID: table '");
  if (at != std::string::npos) {
    return {ErrorKind::kRequest, text.substr(at, text.find('\n', at) - at)};
  }
  // The words of FBGEMM's bounds check. Requests were checked before.
  if (text.find("Expected idx < num_rows") != std::string::npos) {
    return {ErrorKind::kRequest, "computed ID: got one that is no row of its table"};
  }
  return {ErrorKind::kExecution, text};
}

/// Returns the outputs of a batch without rows. It reaches no graph: many operations of models do
/// not define what they make of it (recsys/artifact/inputs.py). Throws Error (kExecution) if an
/// output has no batch dimension.
Outputs NoRows(const Signature& signature) {
  static constexpr float kNoFloat = 0;
  static constexpr std::int64_t kNoInteger = 0;
  if (signature.without_rows() != nullptr) {
    throw Error(ErrorKind::kExecution, "rows: got none, expected at least one: output " +
                                           Repr(signature.without_rows()->name) +
                                           " has no batch dimension");
  }
  Outputs outputs;
  outputs.values.assign(signature.outputs.size(), {&kNoFloat, 0});
  if (signature.has_integers()) outputs.integers.assign(signature.outputs.size(), {&kNoInteger, 0});
  return outputs;
}

}  // namespace

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

bool Model::shares_contexts() const {
  // What could be kept can be shared.
  return parts_->graphs->why_no_context_cache().empty();
}

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
    return CheckedOutputs(graph.Call(inputs, batch.shared), signature(), batch.num_rows, inputs);
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
