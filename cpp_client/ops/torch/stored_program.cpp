#include "ops/torch/stored_program.h"

#include <caffe2/serialize/read_adapter_interface.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/yield.h"
#include "ops/packed.h"
#include "ops/program/program.h"
#include "ops/torch/dtypes.h"
#include "ops/torch/module_path.h"
#include "ops/torch/operators.h"
#include "recsys/error.h"

namespace recsys::ops {
namespace {

/// Reads the program of a step. Throws for numbers that are no program.
Program ProgramOf(const FileStep& step, const at::Tensor& numbers) {
  Program program;
  const std::string error = ReadProgram(numbers.const_data_ptr<std::int64_t>(), numbers.numel(),
                                        static_cast<std::int64_t>(step.inputs.size()),
                                        static_cast<std::int64_t>(step.constants.size()), &program);
  TORCH_CHECK(error.empty(), error);
  if (step.growing.size == 0) return program;
  Growing growing;
  growing.feature = step.growing.feature;
  growing.size = step.growing.size;
  growing.every = step.growing.every;
  for (const std::vector<std::int64_t>& pair : step.growing.buffers) {
    growing.kept.push_back({pair[0], pair[1]});
  }
  const std::string wrong = SetGrowing(std::move(growing), step.growing.steps, &program);
  TORCH_CHECK(wrong.empty(), wrong);
  return program;
}

/// Returns columns of a layer's weight [N, K], added up as `columns` says. Throws for others than
/// there are.
at::Tensor Added(const at::Tensor& weight, const at::Tensor& columns) {
  const auto runs = columns.accessor<std::int64_t, 2>();
  const auto is_right = [&weight](std::int64_t to, std::int64_t from, std::int64_t count,
                                  std::int64_t sign) {
    return from >= 0 && from < weight.size(1) && count >= 1 && count <= weight.size(1) - from &&
           to >= 0 && to <= kMaxInputs - count && (sign == 1 || sign == -1);
  };
  std::int64_t num_inputs = 0;
  for (std::int64_t i = 0; i < runs.size(0); ++i) {
    TORCH_CHECK(is_right(runs[i][0], runs[i][1], runs[i][2], runs[i][3]), "columns[", i,
                "]: expected some of ", weight.size(1));
    num_inputs = std::max(num_inputs, runs[i][0] + runs[i][2]);
  }
  const at::Tensor rows = weight.contiguous();
  at::Tensor added = at::empty({weight.size(0), num_inputs});
  const auto* from = rows.const_data_ptr<float>();
  auto* to = added.mutable_data_ptr<float>();
  // Row by row: large layers take long.
  for (std::int64_t n = 0; n < weight.size(0); ++n, from += weight.size(1), to += num_inputs) {
    YieldIfDue(static_cast<std::size_t>(n));
    std::fill_n(to, num_inputs, 0.0F);
    for (std::int64_t i = 0; i < runs.size(0); ++i) {
      const auto sign = static_cast<float>(runs[i][3]);
      const float* const column = from + runs[i][1];
      for (std::int64_t k = 0; k < runs[i][2]; ++k) to[runs[i][0] + k] += sign * column[k];
    }
  }
  return added;
}

/// Reads bytes in memory, and lets other threads run meanwhile.
class MemoryReader final : public caffe2::serialize::ReadAdapterInterface {
 public:
  /// The bytes must outlive the reader.
  explicit MemoryReader(std::string_view bytes) : bytes_(bytes) {}

  std::size_t size() const override { return bytes_.size(); }
  std::size_t read(std::uint64_t pos, void* buf, std::size_t n,
                   const char* /*what*/) const override {
    const std::string_view wanted = bytes_.substr(std::min<std::size_t>(pos, bytes_.size()), n);
    for (std::size_t at = 0; at < wanted.size(); at += kBytesPerYield) {
      YieldIfDue();
      const std::string_view part = wanted.substr(at, kBytesPerYield);
      std::memcpy(static_cast<char*>(buf) + at, part.data(), part.size());
    }
    return wanted.size();
  }

 private:
  const std::string_view bytes_;
};

/// Sets a dense weight at its path in a module.
void SetWeight(const torch::jit::Module& module, const std::string& path,
               const at::Tensor& weight) {
  auto found = TensorHolder(module, path);
  TORCH_CHECK(found, "a region has no weight ", path);
  auto& [holder, name] = *found;
  const at::Tensor old = holder.attr(name).toTensor();
  TORCH_CHECK(weight.scalar_type() == old.scalar_type() && weight.sizes() == old.sizes(),
              "dense weight ", path, ": got ", weight.scalar_type(), ' ', weight.sizes(),
              ", expected ", old.scalar_type(), ' ', old.sizes());
  holder.setattr(name, weight);
}

}  // namespace

StoredProgram::StoredProgram(std::string_view bytes)
    : bytes_(bytes), file_(ReadProgramFile(bytes_)) {}

at::Tensor StoredProgram::ViewOf(const FileTensor& tensor) const {
  const at::ScalarType type = ScalarTypeOf(tensor.dtype);
  const char* const data = bytes_.data() + tensor.offset;
  if (reinterpret_cast<std::uintptr_t>(data) % c10::elementSize(type) == 0) {
    return at::from_blob(const_cast<char*>(data), tensor.shape, type);
  }
  at::Tensor made = at::empty(tensor.shape, type);
  std::memcpy(made.mutable_data_ptr(), data, tensor.num_bytes);
  return made;
}

at::Tensor StoredProgram::ConstantOf(const ProgramConstant& constant, const at::Tensor& rows,
                                     const Weights& weights,
                                     const std::string& linear_dtype) const {
  const auto weight_at = [&](const std::string& path) {
    const FileTensor& stored = file_.weights.at(path);
    const auto found = weights.find(path);
    if (found == weights.end()) return ViewOf(stored);
    TORCH_CHECK(found->second.scalar_type() == ScalarTypeOf(stored.dtype) &&
                    found->second.sizes() == at::IntArrayRef(stored.shape),
                "dense weight ", path, ": got ", found->second.scalar_type(), ' ',
                found->second.sizes(), ", expected ", stored.dtype, ' ',
                at::IntArrayRef(stored.shape));
    return found->second;
  };
  switch (constant.kind) {
    case ProgramConstant::Kind::kRows:
      return rows;
    case ProgramConstant::Kind::kTensor:
      return ViewOf(file_.tensors.at(constant.name)).clone();
    case ProgramConstant::Kind::kWeight:
      // Steps read whole numbers in float32 too. Neither the file's bytes nor a delta's are kept.
      return weight_at(constant.name).to(at::kFloat, false, /*copy=*/true);
    case ProgramConstant::Kind::kLayer:
      break;
  }
  at::Tensor weight = weight_at(constant.name);
  if (!constant.columns.empty() && weight.scalar_type() == at::kFloat && weight.dim() == 2) {
    weight = Added(weight, ViewOf(file_.tensors.at(constant.columns)));
  }
  c10::optional<at::Tensor> bias;
  if (!constant.bias.empty()) bias = weight_at(constant.bias).reshape({-1});
  TORCH_CHECK(weight.scalar_type() == at::kFloat && weight.dim() == 2 &&
                  IsPackable(weight.size(0), weight.size(1)) && IsFinite(weight),
              "dense weight ", constant.name, ": got ", weight.scalar_type(), ' ', weight.sizes(),
              ", expected finite float32 of a linear layer");
  TORCH_CHECK(!bias || (bias->scalar_type() == at::kFloat && bias->size(0) == weight.size(0)),
              "dense weight ", constant.bias, ": expected float32 [", weight.size(0), ']');
  return PackWeights(weight, bias, linear_dtype);
}

RegionStep StoredProgram::RegionOf(const FileStep& step, const Weights& weights) const {
  const FileTensor& script = file_.tensors.at(step.name);
  const auto bytes = std::make_shared<MemoryReader>(bytes_.substr(script.offset, script.num_bytes));
  torch::jit::Module module;
  // Regions call some of them.
  RegisterOperators();
  try {
    module = torch::jit::load(bytes, at::kCPU);
  } catch (const std::exception&) {
    TORCH_CHECK(false, step.name, ": not readable as TorchScript");
  }
  module.eval();
  for (const auto& [attribute, path] : step.weights) {
    const auto found = weights.find(path);
    if (found != weights.end()) SetWeight(module, attribute, found->second);
  }
  return {torch::jit::freeze(module),
          {step.inputs.begin(), step.inputs.end()},
          static_cast<std::size_t>(step.num_outputs)};
}

std::shared_ptr<ProgramGraph> StoredProgram::Bind(const at::Tensor& rows, const Weights& weights,
                                                  const std::string& linear_dtype,
                                                  const ContextInputs& contexts,
                                                  const std::shared_ptr<OutsideRows>& outside) const
    try {
  GraphParts parts;
  parts.num_inputs = static_cast<std::size_t>(file_.num_inputs);
  for (const FileCheck& check : file_.checks) {
    parts.checks.push_back({static_cast<std::size_t>(check.input),
                            static_cast<std::size_t>(check.of), check.per_row, check.times,
                            check.width});
  }
  for (const FileStep& step : file_.steps) {
    GraphStep& made = parts.steps.emplace_back();
    if (step.kind == FileStep::Kind::kGather) {
      made.gather = {static_cast<std::size_t>(step.rows), static_cast<std::size_t>(step.index)};
      continue;
    }
    if (step.kind == FileStep::Kind::kRegion) {
      made.region = RegionOf(step, weights);
      continue;
    }
    ProgramStep& program = made.program.emplace();
    program.program = ProgramOf(step, ViewOf(file_.tensors.at(step.name)));
    for (Step& one : program.program.steps) {
      if (one.kind == StepKind::kDot)
        one.index = static_cast<std::int64_t>(DotTypeOf(linear_dtype));
    }
    for (const ProgramConstant& constant : step.constants) {
      program.constants.push_back(ConstantOf(constant, rows, weights, linear_dtype));
    }
    program.inputs.assign(step.inputs.begin(), step.inputs.end());
    program.rows_of = step.rows_of;
    program.per_row = step.per_row;
    program.widths = step.widths;
    program.outside = outside;
  }
  for (const auto& [name, place] : file_.outputs) {
    parts.outputs.emplace_back(name, static_cast<std::size_t>(place));
  }
  return std::make_shared<ProgramGraph>(std::move(parts), contexts);
} catch (const c10::Error& error) {
  throw recsys::Error(ErrorKind::kManifest,
                      std::string("operators: ") + error.what_without_backtrace());
}

StepCounts StoredProgram::Counts() const try {
  StepCounts counts;
  for (const FileStep& step : file_.steps) {
    if (step.kind != FileStep::Kind::kPlan) continue;
    for (const Step& of : ProgramOf(step, ViewOf(file_.tensors.at(step.name))).steps) {
      ++counts.all;
      counts.linear += of.kind == StepKind::kLinear ? 1 : 0;
      counts.products += of.kind == StepKind::kDot ? 1 : 0;
      counts.lookups += of.kind == StepKind::kLookup ? 1 : 0;
    }
  }
  return counts;
} catch (const c10::Error& error) {
  throw recsys::Error(ErrorKind::kManifest,
                      std::string("operators: ") + error.what_without_backtrace());
}

}  // namespace recsys::ops
