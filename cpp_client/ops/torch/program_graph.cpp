#include "ops/torch/program_graph.h"

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/runtime/jit_exception.h>

#include <cstdint>
#include <stdexcept>

namespace recsys::ops {
namespace {

/// Measures what is no program, if anything is measured.
class TimedCall {
 public:
  TimedCall(const char* kind, std::vector<StepTime>* times)
      : kind_(kind), times_(times), start_(times == nullptr ? Clock::time_point() : Clock::now()) {}
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;
  ~TimedCall() {
    if (times_ == nullptr) return;
    StepTime& step = times_->emplace_back();
    step.kind = kind_;
    step.time = Clock::now() - start_;
  }

 private:
  using Clock = StepClock::Clock;

  const char* const kind_;
  std::vector<StepTime>* const times_;
  const Clock::time_point start_;
};

}  // namespace

PreparedRegion::PreparedRegion(const RegionStep& step)
    : self_(step.module._ivalue()),
      forward_(&step.module.get_method("forward").function()),
      inputs_(step.inputs),
      num_outputs_(step.num_outputs) {
  const c10::FunctionSchema& schema = forward_->getSchema();
  TORCH_CHECK(schema.arguments().size() == inputs_.size() + 1, "a region takes ",
              schema.arguments().size() - 1, " tensors, expected ", inputs_.size());
  const c10::TypePtr& type = schema.returns().at(0).type();
  const auto tuple = type->cast<c10::TupleType>();
  TORCH_CHECK(tuple != nullptr && tuple->elements().size() == num_outputs_, "a region returns ",
              type->repr_str(), ", expected ", num_outputs_, " tensors");
}

void PreparedRegion::Run(std::vector<at::Tensor>* places) const {
  std::vector<c10::IValue> stack{self_};
  stack.reserve(inputs_.size() + 1);
  for (const std::size_t at : inputs_) stack.emplace_back((*places)[at]);
  const c10::IValue result = (*forward_)(std::move(stack));
  for (const c10::IValue& one : result.toTupleRef().elements()) {
    TORCH_CHECK(one.isTensor(), "a region returns a ", one.tagKind(), ", expected tensors");
    places->push_back(one.toTensor());
  }
}

ProgramGraph::ProgramGraph(GraphParts parts) : parts_(std::move(parts)) {
  for (const GraphStep& step : parts_.steps) {
    if (step.region) regions_.emplace_back(*step.region);
    if (step.program) programs_.emplace_back(*step.program);
  }
}

void ProgramGraph::Check(const std::vector<at::Tensor>& inputs, const ShapeCheck& check) {
  const at::Tensor& input = inputs[check.input];
  const at::Tensor& of = inputs[check.of];
  const std::int64_t num_rows = of.dim() == 0 ? -1 : of.size(0) / check.per_row * check.times;
  const bool fits = input.dim() == (check.width == 0 ? 1 : 2) && input.size(0) == num_rows &&
                    (check.width == 0 || input.size(1) == check.width);
  TORCH_CHECK(fits, "inputs: got ", input.sizes(), " at position ", check.input, ", expected ",
              num_rows, " rows");
}

std::vector<StepTime> ProgramGraph::Profile(const std::vector<at::Tensor>& inputs) const {
  std::vector<StepTime> times;
  Run(inputs, &times);
  return times;
}

ProgramGraph::Outputs ProgramGraph::Run(const std::vector<at::Tensor>& inputs,
                                        std::vector<StepTime>* times) const try {
  TORCH_CHECK(inputs.size() == parts_.num_inputs, "inputs: got ", inputs.size(),
              " tensors, expected ", parts_.num_inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(inputs[i].defined() && inputs[i].is_cpu() && inputs[i].layout() == at::kStrided,
                "inputs: got ", inputs[i].toString(), " at position ", i,
                ", expected a tensor in host memory");
  }
  for (const ShapeCheck& check : parts_.checks) Check(inputs, check);
  const c10::InferenceMode mode;
  std::vector<at::Tensor> places = inputs;
  auto program = programs_.begin();
  auto region = regions_.begin();
  for (const GraphStep& step : parts_.steps) {
    if (step.region) {
      const TimedCall timed("region", times);
      (region++)->Run(&places);
      continue;
    }
    if (!step.program) {
      const TimedCall timed("gather", times);
      places.push_back(at::index_select(places[step.gather.rows], 0, places[step.gather.index]));
      continue;
    }
    // As it appears in torch's profiles.
    RECORD_FUNCTION("recsys_ops::plan", c10::ArrayRef<const c10::IValue>{});
    std::vector<at::Tensor> taken;
    taken.reserve(step.program->inputs.size());
    for (const std::size_t at : step.program->inputs) taken.push_back(places[at]);
    const PreparedProgram& prepared = *program++;
    for (at::Tensor& output :
         times == nullptr ? prepared.Run(taken) : prepared.Profile(taken, times)) {
      places.push_back(std::move(output));
    }
  }
  Outputs outputs;
  outputs.reserve(parts_.outputs.size());
  for (const auto& [name, at] : parts_.outputs) outputs.emplace_back(name, places[at]);
  return outputs;
} catch (const torch::jit::JITException& error) {
  // What a region raised itself.
  throw std::runtime_error(error.what());
} catch (const c10::Error& error) {
  // One type for all errors of graphs, as TorchScript's interpreter has it; without the stack.
  throw std::runtime_error(error.what_without_backtrace());
}

}  // namespace recsys::ops
