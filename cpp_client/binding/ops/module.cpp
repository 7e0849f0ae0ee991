// recsys.kernels._ops: the native kernels for Python.

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/hash/blake2b.h"
#include "binding/build.h"
#include "binding/ops/delta_packed.h"
#include "ops/context_cache.h"
#include "ops/cpu/isa.h"
#include "ops/cpu/probe.h"
#include "ops/row_wise.h"
#include "ops/torch/contexts/context_batch.h"
#include "ops/torch/operators.h"
#include "ops/torch/stored_program.h"

namespace py = pybind11;

namespace {

/// Returns a buffer's int64 numbers.
const std::int64_t* NumbersOf(const py::buffer_info& buffer) {
  if (buffer.ndim != 1 || !buffer.item_type_is_equivalent_to<std::int64_t>() ||
      buffer.strides[0] != buffer.itemsize) {
    throw std::invalid_argument("offsets, sizes: expected contiguous int64 [N]");
  }
  return static_cast<const std::int64_t*>(buffer.ptr);
}

/// ReadRows, with its arguments checked.
std::uint8_t CheckedReadRows(const py::buffer& data, const py::buffer& offsets,
                             const py::buffer& sizes, std::int64_t ahead) {
  const py::buffer_info bytes = data.request(), at = offsets.request(), of = sizes.request();
  if (bytes.ndim != 1 || bytes.itemsize != 1 || bytes.strides[0] != 1) {
    throw std::invalid_argument("data: expected contiguous bytes");
  }
  const std::int64_t* const from = NumbersOf(at);
  const std::int64_t* const length = NumbersOf(of);
  if (of.size != at.size || ahead < 0) {
    throw std::invalid_argument("sizes, ahead: expected as many as offsets, and at least 0");
  }
  bool fits = true;
  for (std::int64_t i = 0; i < at.size; ++i) {
    fits &= from[i] >= 0 && length[i] >= 0 && length[i] <= bytes.size &&
            from[i] <= bytes.size - length[i];
  }
  if (!fits) {
    throw std::invalid_argument("offsets, sizes: expected rows within " +
                                std::to_string(bytes.size) + " bytes");
  }
  const py::gil_scoped_release released;
  return recsys::ops::ReadRows(static_cast<const std::uint8_t*>(bytes.ptr), from, length, at.size,
                               ahead);
}

/// DeltaPacked of a buffer's numbers.
py::bytes CheckedDeltaPacked(const py::buffer& numbers) {
  const py::buffer_info buffer = numbers.request();
  const bool is_short = buffer.item_type_is_equivalent_to<std::int32_t>();
  if (buffer.ndim != 1 || (buffer.size > 0 && buffer.strides[0] != buffer.itemsize) ||
      !(is_short || buffer.item_type_is_equivalent_to<std::int64_t>())) {
    throw std::invalid_argument("numbers: expected contiguous int32 or int64 [N]");
  }
  const auto size = static_cast<std::size_t>(buffer.size);
  std::string packed;
  {
    const py::gil_scoped_release released;
    packed = is_short ? recsys::DeltaPacked(static_cast<const std::int32_t*>(buffer.ptr), size)
                      : recsys::DeltaPacked(static_cast<const std::int64_t*>(buffer.ptr), size);
  }
  return packed;
}

/// Returns the KeyedBlake2b of each of many texts, uint64 [N]; `offsets` are int32 [N + 1] in
/// `texts`.
py::bytes KeyedHashes(const py::buffer& offsets, const py::buffer& texts, const std::string& key,
                      const std::string& person) {
  const py::buffer_info at = offsets.request(), bytes = texts.request();
  if (at.ndim != 1 || at.size == 0 || !at.item_type_is_equivalent_to<std::int32_t>() ||
      at.strides[0] != at.itemsize || bytes.ndim != 1 || bytes.itemsize != 1 ||
      (bytes.size > 0 && bytes.strides[0] != 1)) {
    throw std::invalid_argument("offsets, texts: expected contiguous int32 [N + 1], and bytes");
  }
  const auto* const ends = static_cast<const std::int32_t*>(at.ptr);
  if (ends[0] < 0 || ends[at.size - 1] > bytes.size || !std::is_sorted(ends, ends + at.size)) {
    throw std::invalid_argument("offsets: expected places in " + std::to_string(bytes.size) +
                                " bytes that never fall");
  }
  const recsys::KeyedBlake2b hash(key, person);
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(at.size - 1));
  {
    const py::gil_scoped_release released;
    const auto* const from = static_cast<const char*>(bytes.ptr);
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      hashes[i] = hash.Hash({from + ends[i], static_cast<std::size_t>(ends[i + 1] - ends[i])});
    }
  }
  return {reinterpret_cast<const char*>(hashes.data()), sizeof(std::uint64_t) * hashes.size()};
}

/// Returns a step's tensor, checked.
at::Tensor TensorOf(const py::handle& step, const char* name, at::ScalarType type) {
  const auto tensor = step.attr(name).cast<at::Tensor>();
  TORCH_CHECK_VALUE(tensor.scalar_type() == type && tensor.is_contiguous() && tensor.is_cpu(), name,
                    ": got ", tensor.toString(), ' ', tensor.sizes(), ", expected contiguous ",
                    type, " in host memory");
  return tensor;
}

/// A recsys.kernels.rowwise.RowWiseStep, with its sizes checked. Keeps its tensors.
class CheckedStep {
 public:
  explicit CheckedStep(const py::handle& step)
      : weight_(TensorOf(step, "weight", at::kFloat)),
        state_(TensorOf(step, "state", at::kFloat)),
        values_(TensorOf(step, "values", at::kLong)),
        offsets_(TensorOf(step, "offsets", at::kLong)),
        first_rows_(TensorOf(step, "first_rows", at::kLong)),
        means_(TensorOf(step, "means", at::kBool)) {
    const bool has_weights = !step.attr("weights").is_none();
    if (has_weights) weights_ = TensorOf(step, "weights", at::kFloat);
    const std::int64_t num_slots = first_rows_.numel(), num_ids = values_.numel();
    TORCH_CHECK_VALUE(weight_.dim() == 2 && state_.numel() == weight_.size(0),
                      "weight, state: expected [R, D] and [R]");
    TORCH_CHECK_VALUE(
        num_slots > 0 && offsets_.numel() > 0 && (offsets_.numel() - 1) % num_slots == 0,
        "offsets, first_rows: expected [S * B + 1] and [S]");
    TORCH_CHECK_VALUE(means_.numel() == num_slots, "means: expected [S]");
    TORCH_CHECK_VALUE(!has_weights || weights_.numel() == num_ids, "weights: expected [N]");
    const std::int64_t* const bounds = offsets_.const_data_ptr<std::int64_t>();
    TORCH_CHECK_VALUE(bounds[0] == 0 && bounds[offsets_.numel() - 1] == num_ids &&
                          std::is_sorted(bounds, bounds + offsets_.numel()),
                      "offsets: expected numbers from 0 to ", num_ids, " that never fall");
    step_.weight = weight_.mutable_data_ptr<float>();
    step_.state = state_.mutable_data_ptr<float>();
    step_.values = values_.const_data_ptr<std::int64_t>();
    step_.offsets = bounds;
    step_.first_rows = first_rows_.const_data_ptr<std::int64_t>();
    step_.weights = has_weights ? weights_.const_data_ptr<float>() : nullptr;
    step_.num_rows = weight_.size(0);
    step_.dim = weight_.size(1);
    step_.num_slots = num_slots;
    step_.num_bags = (offsets_.numel() - 1) / num_slots;
    step_.means = means_.const_data_ptr<bool>();
    step_.is_pooled = step.attr("is_pooled").cast<bool>();
    step_.learning_rate = step.attr("learning_rate").cast<float>();
    step_.eps = step.attr("eps").cast<float>();
  }

  const recsys::ops::RowWiseStep& step() const { return step_; }

  /// The shape of the vectors.
  std::array<std::int64_t, 2> shape() const {
    if (!step_.is_pooled) return {values_.numel(), step_.dim};
    return {step_.num_bags, step_.num_slots * step_.dim};
  }

 private:
  at::Tensor weight_, state_, values_, offsets_, first_rows_, means_, weights_;
  recsys::ops::RowWiseStep step_{};
};

at::Tensor CheckedLookUpRows(const py::handle& step) {
  const CheckedStep checked(step);
  at::Tensor vectors = at::empty(checked.shape(), at::kFloat);
  const py::gil_scoped_release released;
  recsys::ops::LookUpRows(checked.step(), vectors.mutable_data_ptr<float>());
  return vectors;
}

void CheckedUpdateRows(const py::handle& step, const at::Tensor& gradient) {
  const CheckedStep checked(step);
  const auto [num_vectors, width] = checked.shape();
  TORCH_CHECK_VALUE(gradient.scalar_type() == at::kFloat && gradient.is_contiguous() &&
                        gradient.numel() == num_vectors * width,
                    "gradient: got ", gradient.sizes(), ", expected contiguous float32 of ",
                    num_vectors, " x ", width);
  const py::gil_scoped_release released;
  recsys::ops::UpdateRows(checked.step(), gradient.const_data_ptr<float>());
}

/// Returns the outputs of a program by name.
py::dict CallProgram(const recsys::ops::ProgramGraph& program, const py::args& args) {
  std::vector<at::Tensor> inputs;
  inputs.reserve(args.size());
  for (const py::handle& arg : args) inputs.push_back(arg.cast<at::Tensor>());
  recsys::ops::ProgramGraph::Outputs found;
  {
    const py::gil_scoped_release released;
    found = program.Run(inputs);
  }
  py::dict outputs;
  for (const auto& [name, tensor] : found) outputs[py::str(name)] = tensor;
  return outputs;
}

/// Returns the counts of a cache, as recsys.kernels.operators.context_cache names them.
py::dict CountsOf(const recsys::ops::ContextCache& cache) {
  const recsys::ContextCacheCounts counts = cache.counts();
  py::dict made;
  made["hits"] = counts.hits;
  made["misses"] = counts.misses;
  made["evictions"] = counts.evictions;
  made["entries"] = counts.entries;
  made["bytes"] = counts.bytes;
  made["grown"] = counts.grown;
  return made;
}

void DefineContexts(py::module_& module) {
  using recsys::ops::ContextCache;
  using recsys::ops::ContextInputs;
  py::class_<ContextCache, std::shared_ptr<ContextCache>>(module, "ContextCache")
      .def(py::init<std::int64_t>())
      .def("clear", &ContextCache::Clear, py::call_guard<py::gil_scoped_release>())
      .def("reset_counts", &ContextCache::ResetCounts)
      .def("counts", &CountsOf);
  py::class_<ContextInputs>(module, "ContextInputs")
      .def(py::init([](std::vector<std::size_t> dense, std::size_t lengths,
                       std::int64_t num_features, bool is_weighted,
                       std::shared_ptr<ContextCache> cache) {
             return ContextInputs{true,         std::move(dense), lengths,
                                  num_features, is_weighted,      std::move(cache)};
           }),
           py::kw_only(), py::arg("dense"), py::arg("lengths"), py::arg("num_features"),
           py::arg("is_weighted"), py::arg("cache"));
}

/// Returns what the steps of a program did, as recsys.kernels.operators.StepTime takes it.
py::list ProfileSteps(const recsys::ops::ProgramGraph& program,
                      const std::vector<at::Tensor>& inputs) {
  std::vector<recsys::ops::StepTime> found;
  {
    const py::gil_scoped_release released;
    found = program.Profile(inputs);
  }
  py::list steps;
  for (const recsys::ops::StepTime& step : found) {
    const auto us = std::chrono::duration<double, std::micro>(step.time).count();
    py::dict made;
    made["kind"] = step.kind;
    made["of"] = step.of;
    made["num_rows"] = step.num_rows;
    made["in_width"] = step.in_width;
    made["out_width"] = step.out_width;
    made["num_ids"] = step.num_ids;
    made["flops"] = step.flops;
    made["dtype"] = step.dtype;
    made["num_bytes"] = step.num_bytes;
    made["us"] = us;
    made["space"] = step.space;
    steps.append(made);
  }
  return steps;
}

}  // namespace

PYBIND11_MODULE(_ops, module) {
  recsys::ops::RegisterOperators();
  module.attr("BUILD") = recsys::kBuild;
  py::class_<recsys::ops::ProgramGraph, std::shared_ptr<recsys::ops::ProgramGraph>>(module,
                                                                                    "Program")
      .def("__call__", &CallProgram)
      .def("why_not_cached", &recsys::ops::ProgramGraph::why_not_cached)
      .def("profile", &ProfileSteps);
  py::class_<recsys::ops::StoredProgram, std::shared_ptr<recsys::ops::StoredProgram>>(
      module, "StoredProgram")
      .def(py::init([](const py::bytes& bytes) {
             return std::make_shared<recsys::ops::StoredProgram>(std::string_view(bytes));
           }),
           py::keep_alive<1, 2>())
      .def(
          "bind",
          [](const recsys::ops::StoredProgram& program, const at::Tensor& rows,
             const recsys::ops::StoredProgram::Weights& weights, const std::string& linear_dtype,
             const recsys::ops::ContextInputs* contexts) {
            const py::gil_scoped_release released;
            return program.Bind(rows, weights, linear_dtype,
                                contexts == nullptr ? recsys::ops::ContextInputs() : *contexts);
          },
          py::arg("rows"), py::arg("weights"), py::arg("linear_dtype"),
          py::arg("contexts") = py::none())
      .def("dense",
           [](const recsys::ops::StoredProgram& program) {
             py::dict found;
             for (const recsys::DenseWeight& weight : program.file().dense) {
               found[py::str(weight.path)] = py::make_tuple(weight.dtype, weight.shape);
             }
             return found;
           })
      .def("counts", [](const recsys::ops::StoredProgram& program) {
        const recsys::ops::StepCounts counts = program.Counts();
        return py::make_tuple(counts.linear, counts.products, counts.lookups, counts.all);
      });
  DefineContexts(module);
  module.def("isa", [] { return recsys::ops::NameOf(recsys::ops::ChosenIsa()); });
  module.def("why_no_tiles", &recsys::ops::WhyNoTiles);
  module.def("multiplies_in", &recsys::ops::MultipliesIn);
  module.def("force_isa", &recsys::ops::ForceIsa);
  module.def("delta_packed", &CheckedDeltaPacked);
  module.def("keyed_hashes", &KeyedHashes);
  module.def("read_rows", &CheckedReadRows);
  module.def("look_up_rows", &CheckedLookUpRows);
  module.def("update_rows", &CheckedUpdateRows);
}
