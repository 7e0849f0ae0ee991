#include "ops/torch/program_graph.h"

#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/runtime/jit_exception.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <utility>

#include "ops/torch/contexts/context_space.h"

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

/// Runs `run` with checked inputs. Returns its result; has one type for all errors of graphs, as
/// TorchScript's interpreter has it, without the stack.
template <typename Run>
auto Guarded(const std::vector<at::Tensor>& inputs, std::size_t num_inputs, Run run) try {
  TORCH_CHECK(inputs.size() == num_inputs, "inputs: got ", inputs.size(), " tensors, expected ",
              num_inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK(inputs[i].defined() && inputs[i].is_cpu() && inputs[i].layout() == at::kStrided,
                "inputs: got ", inputs[i].toString(), " at position ", i,
                ", expected a tensor in host memory");
  }
  const c10::InferenceMode mode;
  return run();
} catch (const torch::jit::JITException& error) {
  // What a region raised itself.
  throw std::runtime_error(error.what());
} catch (const c10::Error& error) {
  throw std::runtime_error(error.what_without_backtrace());
}

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

void PreparedRegion::Run(std::size_t first, std::vector<at::Tensor>* places) const {
  std::vector<c10::IValue> stack{self_};
  stack.reserve(inputs_.size() + 1);
  for (const std::size_t at : inputs_) stack.emplace_back((*places)[at]);
  const c10::IValue result = (*forward_)(std::move(stack));
  for (const c10::IValue& one : result.toTupleRef().elements()) {
    TORCH_CHECK(one.isTensor(), "a region returns a ", one.tagKind(), ", expected tensors");
    (*places)[first++] = one.toTensor();
  }
}

ProgramGraph::ProgramGraph(GraphParts parts, ContextInputs contexts)
    : parts_(Gathered(std::move(parts)).ReadInPlace()),
      contexts_(std::move(contexts)),
      num_places_(parts_.num_inputs) {
  for (const GraphStep& step : parts_.steps) {
    PreparedStep& prepared = steps_.emplace_back(PreparedStep{num_places_, nullptr, nullptr});
    if (step.region) {
      prepared.region = &regions_.emplace_back(*step.region);
      num_places_ += step.region->num_outputs;
    } else if (step.program) {
      prepared.program = &programs_.emplace_back(*step.program);
      num_places_ += step.program->widths.size();
    } else {
      num_places_ += 1;
    }
  }
  if (contexts_.is_ranking) space_ = ContextSpaceOf(parts_, contexts_);
  if (space_.values.empty()) contexts_.cache.reset();
  if (contexts_.cache == nullptr) return;
  owner_ = contexts_.cache->AddOwner();
  for (std::size_t i = 0; i < steps_.size() && growing_ == kNone; ++i) {
    const PreparedProgram* const program = steps_[i].program;
    if (!space_.steps[i] || program == nullptr || contexts_.is_weighted) continue;
    const Growing& growing = program->program().growing;
    if (growing.any() && growing.feature < contexts_.num_features) growing_ = i;
  }
  if (growing_ == kNone) return;
  contexts_.growing = steps_[growing_].program->program().growing.feature;
  states_ = &contexts_.cache->States();
  states_owner_ = states_->AddOwner();
}

std::string ProgramGraph::why_not_cached() const {
  return space_.values.empty() ? "no step computes values of contexts alone" : "";
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

std::vector<at::Tensor> ProgramGraph::PlacesOf(const std::vector<at::Tensor>& inputs) const {
  for (const ShapeCheck& check : parts_.checks) Check(inputs, check);
  std::vector<at::Tensor> places = inputs;
  places.resize(num_places_);
  return places;
}

void ProgramGraph::RunStep(std::size_t step, std::vector<at::Tensor>* places,
                           std::vector<StepTime>* times, const GrownRow* grown) const {
  const auto& [first, program, region] = steps_[step];
  if (region != nullptr) {
    const TimedCall timed("region", times);
    return region->Run(first, places);
  }
  if (program == nullptr) {
    const TimedCall timed("gather", times);
    const GatherStep& gather = parts_.steps[step].gather;
    const at::Tensor &rows = (*places)[gather.rows], &index = (*places)[gather.index];
    if (gather.is_in_place) CheckIndex(rows, RowContextOf(index));
    (*places)[first] = gather.is_in_place ? rows : at::index_select(rows, 0, index);
    return;
  }
  // As it appears in torch's profiles.
  RECORD_FUNCTION("recsys_ops::plan", c10::ArrayRef<const c10::IValue>{});
  const GraphStep& of = parts_.steps[step];
  std::vector<at::Tensor> taken;
  taken.reserve(of.program->inputs.size());
  for (const std::size_t at : of.program->inputs) taken.push_back((*places)[at]);
  const at::Tensor row_context =
      of.program->are_contexts.empty() ? at::Tensor() : RowContextOf((*places)[of.row_context]);
  std::vector<at::Tensor> outputs = times == nullptr ? program->Run(taken, row_context, grown)
                                                     : program->Profile(taken, row_context, times);
  std::move(outputs.begin(), outputs.end(), places->begin() + static_cast<std::ptrdiff_t>(first));
}

void ProgramGraph::RunSteps(Steps which, std::vector<at::Tensor>* places,
                            std::vector<StepTime>* times, const GrownRow* grown) const {
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    if (which != Steps::kAll && space_.steps[i] != (which == Steps::kOfContexts)) continue;
    const std::size_t num_times = times == nullptr ? 0 : times->size();
    RunStep(i, places, times, i == growing_ ? grown : nullptr);
    if (times == nullptr || !contexts_.is_ranking) continue;
    for (std::size_t at = num_times; at < times->size(); ++at) {
      (*times)[at].space = space_.steps[i] ? "contexts" : "rows";
    }
  }
}

void ProgramGraph::FillContexts(const ContextBatch& batch, std::vector<at::Tensor>* places) const {
  ContextCache& cache = *contexts_.cache;
  const std::vector<ContextKey>& keys = batch.keys();
  auto [values, generation] = cache.Find(owner_, keys);
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == nullptr) missing.push_back(i);
  }
  const bool is_all = missing.size() == keys.size();
  std::vector<at::Tensor> some;
  if (!is_all && !missing.empty()) {
    some = batch.Some(missing);
    some.resize(num_places_);
  }
  std::vector<at::Tensor>* const computed = is_all ? places : &some;
  if (!missing.empty()) {
    ComputeContexts(batch, missing, computed);
    CheckContexts(space_, *computed, static_cast<std::int64_t>(missing.size()));
  }
  for (std::size_t row = 0; row < missing.size(); ++row) {
    const ContextKey& key = keys[missing[row]];
    const bool fits = cache.Fits(key, space_.num_values);
    if (is_all && !fits) continue;
    ContextCache::Values& kept = values[missing[row]];
    kept = CopyOfContext(space_, *computed, static_cast<std::int64_t>(row));
    if (fits) cache.Add(owner_, generation, key, kept, space_.num_values);
  }
  if (!is_all) PlaceContexts(space_, values, places);
}

void ProgramGraph::ComputeContexts(const ContextBatch& batch, const std::vector<std::size_t>& keys,
                                   std::vector<at::Tensor>* places) const {
  if (growing_ == kNone) return RunSteps(Steps::kOfContexts, places, nullptr);
  GrownContexts grown(steps_[growing_].program->program(), states_, states_owner_);
  grown.Find(batch, keys);
  RunSteps(Steps::kOfContexts, places, nullptr, grown.rows());
  grown.Keep(batch, keys);
}

ProgramGraph::Outputs ProgramGraph::OutputsOf(const std::vector<at::Tensor>& places) const {
  Outputs outputs;
  outputs.reserve(parts_.outputs.size());
  for (const auto& [name, at] : parts_.outputs) outputs.emplace_back(name, places[at]);
  return outputs;
}

std::vector<StepTime> ProgramGraph::Profile(const std::vector<at::Tensor>& inputs) const {
  return Guarded(inputs, parts_.num_inputs, [&] {
    std::vector<StepTime> times;
    std::vector<at::Tensor> places = PlacesOf(inputs);
    RunSteps(Steps::kAll, &places, &times);
    return times;
  });
}

void ProgramGraph::Share(const std::vector<at::Tensor>& places, SharedContext* shared) const {
  CheckContexts(space_, places, 1);
  shared->Add(CopyOfContext(space_, places, 0));
}

ProgramGraph::Outputs ProgramGraph::Run(const std::vector<at::Tensor>& inputs,
                                        SharedContext* shared) const {
  return Guarded(inputs, parts_.num_inputs, [&] {
    if (space_.values.empty()) shared = nullptr;
    if (const auto values = shared == nullptr ? nullptr : shared->Find()) {
      std::vector<at::Tensor> places = PlacesOf(inputs);
      PlaceContexts(space_, {values}, &places);
      RunSteps(Steps::kOthers, &places, nullptr);
      return OutputsOf(places);
    }
    ContextBatch batch;
    const bool is_read = contexts_.is_ranking && batch.Read(contexts_, inputs);
    std::vector<at::Tensor> places = PlacesOf(is_read ? batch.Distinct() : inputs);
    const bool is_kept = is_read && contexts_.cache != nullptr;
    if (!is_kept && shared == nullptr) {
      RunSteps(Steps::kAll, &places, nullptr);
      return OutputsOf(places);
    }
    if (is_kept) {
      FillContexts(batch, &places);
    } else {
      RunSteps(Steps::kOfContexts, &places, nullptr);
    }
    if (shared != nullptr) Share(places, shared);
    RunSteps(Steps::kOthers, &places, nullptr);
    return OutputsOf(places);
  });
}

}  // namespace recsys::ops
