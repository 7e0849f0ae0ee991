#include "ops/torch/program_graph.h"

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/runtime/jit_exception.h>

#include <cstdint>
#include <map>
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

/// Returns the index of a gather as programs take it.
at::Tensor RowContextOf(const at::Tensor& index) {
  TORCH_CHECK_INDEX(index.dim() == 1, "inputs: got an index ", index.sizes(), ", expected [B]");
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                    "inputs: got an index of ", index.scalar_type(), ", expected int64");
  return index.to(at::kLong).contiguous();
}

/// Throws for an index of other rows than there are.
void CheckIndex(const at::Tensor& rows, const at::Tensor& index) {
  TORCH_CHECK_INDEX(rows.dim() > 0, "inputs: got one number, expected rows");
  const auto* const numbers = index.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < index.numel(); ++i) {
    TORCH_CHECK_INDEX(numbers[i] >= 0 && numbers[i] < rows.size(0),
                      "inputs: index out of range: got ", numbers[i], " at position ", i,
                      ", expected one of ", rows.size(0), " rows");
  }
}

/// Lets programs read rows in place where nothing else reads what a gather makes of them.
class Gathered {
 public:
  explicit Gathered(GraphParts parts) : parts_(std::move(parts)) {
    std::size_t place = parts_.num_inputs;
    for (GraphStep& step : parts_.steps) {
      if (step.program) {
        place += step.program->widths.size();
      } else if (step.region) {
        place += step.region->num_outputs;
      } else {
        gathers_.emplace(place++, &step.gather);
      }
    }
  }

  GraphParts ReadInPlace() {
    for (const auto& [name, at] : parts_.outputs) gathers_.erase(at);
    for (const GraphStep& step : parts_.steps) {
      if (step.region) {
        for (const std::size_t at : step.region->inputs) gathers_.erase(at);
      } else if (step.program) {
        Drop(*step.program);
      } else {
        gathers_.erase(step.gather.rows);
        gathers_.erase(step.gather.index);
      }
    }
    for (const auto& [at, gather] : gathers_) gather->is_in_place = true;
    for (GraphStep& step : parts_.steps) {
      if (step.program) Mark(&step);
    }
    return std::move(parts_);
  }

 private:
  /// Drops what a program reads in another way than by steps, or by another index.
  void Drop(const ProgramStep& program) {
    const GatherStep* first = nullptr;
    for (std::size_t i = 0; i < program.inputs.size(); ++i) {
      const auto found = gathers_.find(program.inputs[i]);
      if (found == gathers_.end()) continue;
      const bool is_first = first == nullptr || first->index == found->second->index;
      if (!is_first || !IsReadBySteps(program.program, static_cast<std::int64_t>(i))) {
        gathers_.erase(found);
      } else {
        first = found->second;
      }
    }
  }

  void Mark(GraphStep* step) const {
    ProgramStep& program = *step->program;
    for (std::size_t i = 0; i < program.inputs.size(); ++i) {
      const auto found = gathers_.find(program.inputs[i]);
      if (found == gathers_.end()) continue;
      program.are_contexts.resize(program.inputs.size());
      program.are_contexts[i] = true;
      step->row_context = found->second->index;
    }
  }

  GraphParts parts_;
  /// By the places of their results.
  std::map<std::size_t, GatherStep*> gathers_;
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

ProgramGraph::ProgramGraph(GraphParts parts) : parts_(Gathered(std::move(parts)).ReadInPlace()) {
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
      const at::Tensor &rows = places[step.gather.rows], &index = places[step.gather.index];
      if (step.gather.is_in_place) CheckIndex(rows, RowContextOf(index));
      places.push_back(step.gather.is_in_place ? rows : at::index_select(rows, 0, index));
      continue;
    }
    // As it appears in torch's profiles.
    RECORD_FUNCTION("recsys_ops::plan", c10::ArrayRef<const c10::IValue>{});
    std::vector<at::Tensor> taken;
    taken.reserve(step.program->inputs.size());
    for (const std::size_t at : step.program->inputs) taken.push_back(places[at]);
    const at::Tensor row_context =
        step.program->are_contexts.empty() ? at::Tensor() : RowContextOf(places[step.row_context]);
    const PreparedProgram& prepared = *program++;
    for (at::Tensor& output : times == nullptr ? prepared.Run(taken, row_context)
                                               : prepared.Profile(taken, row_context, times)) {
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
