#include "ops/torch/contexts/context_space.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/hash/xxh64.h"
#include "ops/torch/program_graph.h"

namespace recsys::ops {
namespace {

/// Finds the steps of contexts, place by place.
class Finding {
 public:
  Finding(const GraphParts& parts, const ContextInputs& inputs) : parts_(parts) {
    per_context_.resize(parts.num_inputs);
    for (const std::size_t at : inputs.dense) per_context_[at] = kAny;
    per_context_[inputs.lengths] = inputs.num_features;
    per_context_[inputs.lengths + 1] = kAny;
    if (inputs.is_weighted) per_context_[inputs.lengths + 2] = kAny;
    // Each has so many numbers a context as the plan says that counts rows by it.
    dense_ = inputs.dense;
  }

  ContextSpace Run() {
    for (const GraphStep& step : parts_.steps) {
      const bool is_of_contexts = step.program && IsOfContexts(*step.program);
      space_.steps.push_back(is_of_contexts);
      if (!is_of_contexts) ReadValues(step);
      AddPlaces(step, is_of_contexts);
    }
    for (const auto& [name, place] : parts_.outputs) ReadValue(place);
    return std::move(space_);
  }

 private:
  /// Of contexts, but not so many numbers for each.
  static constexpr std::int64_t kAny = -1;

  bool IsOfContexts(const ProgramStep& step) const {
    if (!std::all_of(step.inputs.begin(), step.inputs.end(),
                     [this](std::size_t at) { return per_context_[at].has_value(); })) {
      return false;
    }
    const std::size_t counted = step.inputs[static_cast<std::size_t>(step.rows_of)];
    const bool is_dense = std::find(dense_.begin(), dense_.end(), counted) != dense_.end();
    return is_dense || per_context_[counted] == step.per_row;
  }

  void AddPlaces(const GraphStep& step, bool is_of_contexts) {
    const std::size_t num_places = step.region    ? step.region->num_outputs
                                   : step.program ? step.program->widths.size()
                                                  : 1;
    for (std::size_t i = 0; i < num_places; ++i) {
      std::optional<std::int64_t>& added = per_context_.emplace_back();
      widths_.resize(per_context_.size());
      if (!is_of_contexts) continue;
      widths_.back() = step.program->widths[i];
      added = std::max(step.program->widths[i], std::int64_t{1});
    }
  }

  void ReadValues(const GraphStep& step) {
    if (step.region) {
      for (const std::size_t at : step.region->inputs) {
        if (ReadValue(at)) space_.is_read_by_regions = true;
      }
    } else if (step.program) {
      for (const std::size_t at : step.program->inputs) ReadValue(at);
    } else {
      ReadValue(step.gather.rows);
      ReadValue(step.gather.index);
    }
  }

  /// Returns whether a place holds a value of contexts, which it adds to those that are read.
  bool ReadValue(std::size_t place) {
    if (place < parts_.num_inputs || !per_context_[place]) return false;
    const bool is_known =
        std::any_of(space_.values.begin(), space_.values.end(),
                    [place](const ContextSpace::Value& value) { return value.place == place; });
    if (is_known) return true;
    space_.values.push_back({place, widths_[place]});
    space_.num_values += space_.values.back().count();
    return true;
  }

  const GraphParts& parts_;
  std::vector<std::size_t> dense_;
  /// By place, how many numbers a context has there; not set for what is not of contexts.
  std::vector<std::optional<std::int64_t>> per_context_;
  /// By place, of values of contexts.
  std::vector<std::int64_t> widths_;
  ContextSpace space_;
};

}  // namespace

ContextSpace ContextSpaceOf(const GraphParts& parts, const ContextInputs& inputs) {
  const std::size_t last = inputs.lengths + (inputs.is_weighted ? 2 : 1);
  TORCH_CHECK(last + 1 < parts.num_inputs && inputs.num_features >= 0 &&
                  std::all_of(inputs.dense.begin(), inputs.dense.end(),
                              [&](std::size_t at) { return at < inputs.lengths; }),
              "contexts: got inputs that are not those of the program");
  return Finding(parts, inputs).Run();
}

void CheckContexts(const ContextSpace& space, const std::vector<at::Tensor>& places,
                   std::int64_t num_contexts) {
  for (const ContextSpace::Value& value : space.values) {
    const at::Tensor& found = places[value.place];
    TORCH_CHECK(found.is_contiguous() && found.scalar_type() == at::kFloat &&
                    found.numel() == num_contexts * value.count(),
                "contexts: got values ", found.sizes(), ", expected ", value.count(),
                " numbers for each of ", num_contexts);
  }
}

ContextCache::Values CopyOfContext(const ContextSpace& space, const std::vector<at::Tensor>& places,
                                   std::int64_t row) {
  std::shared_ptr<float[]> copy(new float[static_cast<std::size_t>(space.num_values)]);
  float* to = copy.get();
  for (const ContextSpace::Value& value : space.values) {
    const float* const numbers = places[value.place].const_data_ptr<float>();
    to = std::copy_n(numbers + row * value.count(), value.count(), to);
  }
  return copy;
}

void PlaceContexts(const ContextSpace& space, const std::vector<ContextCache::Values>& contexts,
                   std::vector<at::Tensor>* places) {
  const auto num_contexts = static_cast<std::int64_t>(contexts.size());
  // One context is read where it is kept.
  const bool is_in_place = num_contexts == 1 && !space.is_read_by_regions;
  std::int64_t start = 0;
  for (const ContextSpace::Value& value : space.values) {
    std::vector<std::int64_t> shape{num_contexts};
    if (value.width > 0) shape.push_back(value.width);
    at::Tensor& placed = (*places)[value.place];
    if (is_in_place) {
      auto* const numbers = const_cast<float*>(contexts[0].get() + start);
      placed = at::from_blob(
          numbers, shape, [kept = contexts[0]](void*) {}, at::kFloat);
    } else {
      placed = at::empty(shape, at::kFloat);
      float* to = placed.mutable_data_ptr<float>();
      for (const ContextCache::Values& context : contexts) {
        to = std::copy_n(context.get() + start, value.count(), to);
      }
    }
    start += value.count();
  }
}

namespace {

/// A state that lacks more IDs is not looked for.
constexpr std::int64_t kMostNew = 32;

/// Returns a key, and those that lack one ID, two, and so on at its end.
std::vector<ContextKey> Shorter(const ContextKey& key, std::int64_t most) {
  std::vector<ContextKey> keys{key};
  std::string_view bytes = key.bytes;
  for (; most > 0; --most) {
    bytes.remove_suffix(sizeof(std::int64_t));
    keys.push_back({bytes, Xxh64(bytes)});
  }
  return keys;
}

}  // namespace

void GrownContexts::Find(const ContextBatch& batch, const std::vector<std::size_t>& places) {
  for (const std::size_t place : places) {
    GrownRow& row = rows_.emplace_back();
    std::shared_ptr<float[]> written;
    ContextCache::Values before;
    row.num_ids = batch.NumGrowing(place);
    const ContextKey& key = batch.keys()[place];
    if (row.num_ids > 0 && row.num_ids < program_.growing.size) {
      // At least one ID was there before.
      ContextCache::First found =
          states_->FindFirst(owner_, Shorter(key, std::min(kMostNew, row.num_ids - 1)));
      if (!generation_) generation_ = found.generation;
      if (found.values != nullptr && found.generation == generation_) {
        row.num_before = row.num_ids - found.place;
        row.begin = row.num_before / program_.growing.every * program_.growing.every;
        before = std::move(found.values);
        row.before = before.get();
      }
      const std::int64_t count = NumbersOfState(program_, row.num_ids);
      if (states_->Fits(key, count)) {
        written = std::shared_ptr<float[]>(new float[static_cast<std::size_t>(count)]);
        row.state = written.get();
      }
    }
    before_.push_back(std::move(before));
    written_.push_back(std::move(written));
  }
}

void GrownContexts::Keep(const ContextBatch& batch, const std::vector<std::size_t>& places) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (written_[i] == nullptr) continue;
    states_->Add(owner_, *generation_, batch.keys()[places[i]], std::move(written_[i]),
                 NumbersOfState(program_, rows_[i].num_ids));
  }
}

}  // namespace recsys::ops
