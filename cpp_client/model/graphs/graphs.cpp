#include "model/graphs/graphs.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>

#include "base/text.h"
#include "format/json/checked_json.h"
#include "model/answers.h"
#include "ops/torch/dtypes.h"
#include "ops/torch/program_graph.h"
#include "recsys/error.h"

namespace recsys {
namespace {

// The executor profiles a graph in its first call, and optimizes it in the second.
constexpr int kNumWarmUps = 2;

std::string SizesText(at::IntArrayRef shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

/// Adds the inputs of bags without IDs, or with as many as the model takes.
void AddBags(const std::vector<const SparseInput*>& uses, std::int64_t num_rows, bool is_weighted,
             std::vector<c10::IValue>* inputs) {
  std::vector<std::int64_t> lengths;
  for (const SparseInput* use : uses) {
    lengths.insert(lengths.end(), static_cast<std::size_t>(num_rows), use->num_ids.value_or(0));
  }
  const at::Tensor counts = at::tensor(lengths, at::kLong);
  const std::int64_t num_ids = counts.sum().item<std::int64_t>();
  inputs->emplace_back(counts);
  inputs->emplace_back(at::zeros({num_ids}, at::kLong));
  if (is_weighted) inputs->emplace_back(at::ones({num_ids}));
}

/// Returns the inputs of the fewest rows that exports verify, for the plain or the ranking form.
std::vector<c10::IValue> FewRows(const Signature& signature, bool is_ranking) {
  const std::int64_t num_rows = signature.by_request ? 2 : 1;
  std::vector<c10::IValue> inputs;
  for (const DenseInput& dense : signature.dense) {
    const bool is_shared = is_ranking && signature.InContext(dense.name);
    inputs.emplace_back(at::zeros({is_shared ? 1 : num_rows, dense.width}));
  }
  std::vector<const SparseInput*> shared, own;
  for (const SparseInput& sparse : signature.sparse) {
    (is_ranking && signature.InContext(sparse.name) ? shared : own).push_back(&sparse);
  }
  if (is_ranking) AddBags(shared, 1, signature.is_weighted(), &inputs);
  AddBags(own, num_rows, signature.is_weighted(), &inputs);
  if (is_ranking) inputs.emplace_back(at::zeros({num_rows}, at::kLong));
  return inputs;
}

}  // namespace

c10::IValue Callable::Call(std::vector<c10::IValue> inputs, SharedContext* shared) const {
  if (program_ != nullptr) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(inputs.size());
    for (const c10::IValue& input : inputs) tensors.push_back(input.toTensor());
    c10::Dict<std::string, at::Tensor> outputs;
    for (auto& [name, tensor] : program_->Run(tensors, shared)) {
      outputs.insert(name, std::move(tensor));
    }
    return outputs;
  }
  torch::jit::Stack stack = std::move(inputs);
  stack.insert(stack.begin(), self_);
  forward_->run(stack);
  return std::move(stack.back());
}

LoadedGraphs::LoadedGraphs(std::vector<torch::jit::Module> modules, Plan plan, TensorMap mappings)
    : modules_(std::move(modules)),
      plan_(std::move(plan)),
      mappings_(std::move(mappings)),
      frozen_(Frozen()) {}

std::string LoadedGraphs::why_no_context_cache() const {
  if (ranking() == nullptr) return "the model has no context";
  if (programs_.parts.empty()) return "torch's operators run it, not a program";
  return ranking()->program()->why_not_cached();
}

LoadedGraphs::LoadedGraphs(ProgramForms programs, TensorMap mappings)
    : mappings_(std::move(mappings)), programs_(std::move(programs)), frozen_(Bound({})) {}

std::vector<Callable> LoadedGraphs::Bound(const TensorMap& weights) const {
  std::vector<Callable> bound;
  TensorMap together = weights;
  together.insert(mappings_.begin(), mappings_.end());
  for (const ProgramPart& part : programs_.parts) {
    const bool is_ranking = !bound.empty();
    bound.emplace_back(part.Bind(programs_.rows, together, programs_.linear_dtype,
                                 is_ranking ? programs_.contexts : ops::ContextInputs(),
                                 programs_.outside));
  }
  return bound;
}

GraphChange LoadedGraphs::Rebound(const TensorMap& weights) const {
  GraphChange change;
  TensorMap together = weights;
  together.insert(weights_.begin(), weights_.end());
  change.frozen = Bound(together);
  change.weights.push_back(std::move(together));
  return change;
}

std::vector<TensorMap> LoadedGraphs::Dense() const {
  std::vector<TensorMap> forms;
  for (const torch::jit::Module& module : modules_) forms.push_back(DenseTensors(module, plan_));
  for (const ProgramPart& part : programs_.parts) {
    TensorMap& tensors = forms.emplace_back();
    for (const DenseWeight& weight : part.dense()) {
      // Without numbers: only its type and shape are looked at.
      const auto options = at::TensorOptions().dtype(ScalarTypeOf(weight.dtype)).device(at::kMeta);
      tensors.emplace(weight.path, at::empty(weight.shape, options));
    }
  }
  for (TensorMap& form : forms) {
    for (const auto& [path, slots] : mappings_) form.erase(path);
  }
  return forms;
}

std::vector<Callable> LoadedGraphs::Frozen() const {
  std::vector<Callable> frozen;
  for (const torch::jit::Module& module : modules_) frozen.emplace_back(Freeze(module));
  return frozen;
}

void LoadedGraphs::Check(const DeltaHeader& header) const {
  const std::vector<TensorMap> forms = header.dense.empty() ? std::vector<TensorMap>() : Dense();
  for (std::size_t i = 0; i < header.dense.size(); ++i) {
    const DenseDelta& weight = header.dense[i];
    const std::string at = "delta.dense[" + std::to_string(i) + "]";
    bool is_known = false;
    for (const TensorMap& form : forms) {
      const auto found = form.find(weight.name);
      if (found == form.end()) continue;
      is_known = true;
      const std::string as = ", as dense weight " + Repr(weight.name) + " has it";
      const std::string dtype = DtypeName(found->second.scalar_type());
      if (weight.dtype != dtype) throw WrongField(at, "dtype", weight.dtype, dtype + as);
      if (found->second.sizes() != at::IntArrayRef(weight.shape)) {
        throw WrongField(at, "shape", SizesText(weight.shape),
                         SizesText(found->second.sizes()) + as);
      }
    }
    if (!is_known) {
      throw WrongField(at, "name", StrOf(Json(weight.name)),
                       "the path of a dense weight of the artifact");
    }
  }
}

GraphChange LoadedGraphs::WithWeights(const TensorMap& weights, const Signature& signature,
                                      const Answers* verified) {
  if (modules_.empty()) return Rebound(weights);
  GraphChange change;
  std::vector<TensorMap> held;
  for (const torch::jit::Module& module : modules_) {
    TensorMap replaced, placed;
    for (auto& [path, tensor] : DenseTensors(module, plan_)) {
      const auto found = weights.find(path);
      if (found == weights.end()) continue;
      replaced.emplace(path, tensor);
      placed.emplace(path, found->second.to(tensor.device()));
    }
    held.push_back(std::move(replaced));
    change.weights.push_back(std::move(placed));
  }
  {
    // Constants that are folded must not be inference tensors: those of a loaded model are none
    // either.
    const c10::InferenceMode none(false);
    const auto set = [this](const std::vector<TensorMap>& forms) {
      for (std::size_t i = 0; i < modules_.size(); ++i) SetTensors(modules_[i], forms[i]);
    };
    set(change.weights);
    try {
      change.frozen = Frozen();
    } catch (...) {
      set(held);
      throw;
    }
    set(held);
  }
  for (std::size_t form = 0; form < change.frozen.size(); ++form) {
    const bool is_ranking = form > 0;
    for (int i = 0; i < kNumWarmUps; ++i) {
      change.frozen[form].Call(verified != nullptr ? verified->Inputs(is_ranking)
                                                   : FewRows(signature, is_ranking));
    }
  }
  return change;
}

void LoadedGraphs::Write(const GraphChange& change) {
  for (std::size_t i = 0; i < modules_.size(); ++i) SetTensors(modules_[i], change.weights[i]);
  if (modules_.empty()) weights_ = change.weights[0];
  frozen_ = change.frozen;
}

}  // namespace recsys
