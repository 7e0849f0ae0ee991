#include "model/compiled.h"

#include <fcntl.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/sha256.h"
#include "base/text.h"
#include "model/artifact_files.h"
#include "ops/torch/stored_program.h"
#include "recsys/error.h"

namespace recsys {
namespace {

struct Feature {
  const char* name;
  bool is_here;
};

/// The features that an instruction set needs, by torch's names; empty if it is not known.
std::vector<Feature> FeaturesOf(const std::string& isa) {
  std::vector<Feature> features;
#if defined(__x86_64__)
#define RECSYS_FEATURE(name, code) \
  Feature { name, __builtin_cpu_supports(code) != 0 }
  if (isa != "x86-64-v3" && isa != "x86-64-v4") return features;
  // What has AVX2 has F16C, which clang 14 cannot ask for.
  features = {RECSYS_FEATURE("avx2", "avx2"), RECSYS_FEATURE("bmi2", "bmi2"),
              RECSYS_FEATURE("f16c", "avx2"), RECSYS_FEATURE("fma3", "fma")};
  if (isa == "x86-64-v4") {
    for (const Feature& feature :
         {RECSYS_FEATURE("avx512_f", "avx512f"), RECSYS_FEATURE("avx512_bw", "avx512bw"),
          RECSYS_FEATURE("avx512_cd", "avx512cd"), RECSYS_FEATURE("avx512_dq", "avx512dq"),
          RECSYS_FEATURE("avx512_vl", "avx512vl")}) {
      features.push_back(feature);
    }
  }
#undef RECSYS_FEATURE
#else
  if (isa == "x86-64-v3" || isa == "x86-64-v4") features = {{"x86_64", false}};
#endif
  return features;
}

std::string PublicVersion(const std::string& version) {
  return version.substr(0, version.find('+'));
}

void CheckUsable(const Target& target, const Graph& graph) {
  const std::string at = "target " + Repr(target.name) + ": ";
  const auto refuse = [&at](const std::string& text) {
    throw Error(ErrorKind::kTarget, at + text);
  };
  if (!graph.compiled) {
    refuse("holds no compiled graph, expected one; export it with --format pt2 or both");
  }
  const CompiledPart& compiled = *graph.compiled;
  const std::vector<Feature> features = FeaturesOf(compiled.isa);
  if (features.empty()) {
    refuse("compiled for the instructions " + Repr(compiled.isa.substr(0, 40)) +
           ", expected one of ['x86-64-v3', 'x86-64-v4']; install a newer release");
  }
  std::string lacking;
  for (const Feature& feature : features) {
    if (!feature.is_here) lacking += (lacking.empty() ? "" : ", ") + std::string(feature.name);
  }
  if (!lacking.empty()) {
    refuse("compiled for " + compiled.isa + ", but this processor lacks " + lacking +
           "; export it with another --pt2-isa, or with --format torchscript");
  }
  const std::string here = PublicVersion(TORCH_VERSION);
  if (PublicVersion(compiled.torch) != here) {
    refuse("compiled for torch " + compiled.torch.substr(0, 40) + ", but this is torch " + here +
           "; export it with this torch, or with --format torchscript");
  }
}

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kExecution, text); }

/// The IDs of one batch, or of its contexts.
struct Ids {
  at::Tensor lengths, values;
  at::Tensor weights;
};

/// Takes inputs one by one, and checks what the compiled code trusts.
class Inputs {
 public:
  explicit Inputs(const std::vector<c10::IValue>& inputs) : inputs_(inputs) {}

  at::Tensor Next(const std::string& name, at::ScalarType type, std::int64_t dim) {
    if (at_ == inputs_.size()) Refuse("inputs: got too few, expected " + Repr(name) + " too");
    const at::Tensor tensor = inputs_[at_++].toTensor();
    if (tensor.scalar_type() != type || tensor.dim() != dim || !tensor.device().is_cpu()) {
      Refuse(name + ": got another type, shape or device than the signature says");
    }
    return tensor.contiguous();
  }

  Ids NextIds(bool is_weighted) {
    Ids ids{Next("lengths", at::kLong, 1), Next("values", at::kLong, 1), {}};
    if (is_weighted) ids.weights = Next("weights", at::kFloat, 1);
    return ids;
  }

  void End() const {
    if (at_ != inputs_.size()) Refuse("inputs: got more than the signature says");
  }

 private:
  const std::vector<c10::IValue>& inputs_;
  std::size_t at_ = 0;
};

std::int64_t NumBags(std::int64_t num_features, const Ids& ids, const at::Tensor* dense) {
  if (num_features > 0) return ids.lengths.numel() / num_features;
  return dense == nullptr ? 0 : dense->size(0);
}

/// Adds the inputs of one batch, or of its contexts; lengths become [F, B].
void AddIds(const Ids& ids, std::int64_t num_features, std::int64_t num_bags,
            std::vector<at::Tensor>* placed) {
  const std::int64_t num_values = ids.values.numel();
  if (ids.lengths.numel() != num_features * num_bags) {
    Refuse("lengths: got " + std::to_string(ids.lengths.numel()) + ", expected " +
           std::to_string(num_features * num_bags));
  }
  const std::int64_t* lengths = ids.lengths.const_data_ptr<std::int64_t>();
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < ids.lengths.numel(); ++i) {
    // What is left is compared, so that sums cannot overflow.
    if (lengths[i] < 0 || lengths[i] > num_values - sum) sum = -1;
    if (sum < 0) break;
    sum += lengths[i];
  }
  if (sum != num_values) {
    Refuse("lengths: got numbers below 0 or another sum than the " + std::to_string(num_values) +
           " values");
  }
  if (ids.weights.defined() && ids.weights.numel() != num_values) {
    Refuse("weights: got " + std::to_string(ids.weights.numel()) + " for " +
           std::to_string(num_values) + " values");
  }
  placed->push_back(ids.lengths.view({num_features, num_bags}));
  placed->push_back(ids.values);
  if (ids.weights.defined()) placed->push_back(ids.weights);
}

void CheckRowContext(const at::Tensor& row_context, std::int64_t num_contexts) {
  const std::int64_t* first = row_context.const_data_ptr<std::int64_t>();
  const bool fits =
      std::all_of(first, first + row_context.numel(),
                  [num_contexts](std::int64_t at) { return at >= 0 && at < num_contexts; });
  if (!fits) {
    Refuse("row_context: got a number outside of the " + std::to_string(num_contexts) +
           " contexts");
  }
}

std::vector<at::Tensor> CheckedInputs(const std::vector<c10::IValue>& given,
                                      const Signature& signature, bool is_ranking) {
  Inputs inputs(given);
  std::vector<at::Tensor> placed;
  const at::Tensor* of_context = nullptr;
  for (const DenseInput& dense : signature.dense) {
    placed.push_back(inputs.Next(dense.name, at::kFloat, 2));
  }
  for (std::size_t i = 0; i < placed.size(); ++i) {
    if (signature.InContext(signature.dense[i].name)) of_context = &placed[i];
  }
  const bool is_weighted = signature.is_weighted();
  const Ids context = is_ranking ? inputs.NextIds(is_weighted) : Ids{};
  const Ids rows = inputs.NextIds(is_weighted);
  const at::Tensor row_context =
      is_ranking ? inputs.Next("row_context", at::kLong, 1) : at::Tensor();
  inputs.End();

  std::int64_t num_in_context = 0;
  for (const SparseInput& sparse : signature.sparse) {
    num_in_context += is_ranking && signature.InContext(sparse.name) ? 1 : 0;
  }
  const auto num_of_rows = static_cast<std::int64_t>(signature.sparse.size()) - num_in_context;
  const std::int64_t num_contexts = is_ranking ? NumBags(num_in_context, context, of_context) : 0;
  const std::int64_t num_rows =
      is_ranking ? row_context.numel()
                 : NumBags(num_of_rows, rows, placed.empty() ? nullptr : placed.data());
  if (is_ranking) CheckRowContext(row_context, num_contexts);
  for (std::size_t i = 0; i < signature.dense.size(); ++i) {
    const DenseInput& dense = signature.dense[i];
    const bool once = is_ranking && signature.InContext(dense.name);
    if (placed[i].size(0) != (once ? num_contexts : num_rows) || placed[i].size(1) != dense.width) {
      Refuse("dense input " + Repr(dense.name) + ": got another shape than the signature says");
    }
  }
  if (is_ranking) AddIds(context, num_in_context, num_contexts, &placed);
  AddIds(rows, num_of_rows, num_rows, &placed);
  if (is_ranking) placed.push_back(row_context);
  return placed;
}

/// Calls `make`; says of its errors which part they are in.
template <typename Make>
auto InPart(const std::string& name, Make make) {
  try {
    return make();
  } catch (const Error& error) {
    throw Error(ErrorKind::kManifest,
                "part " + Repr(name) + ": not readable as own operators: " + error.what());
  }
}

}  // namespace

void CheckUsable(const Target& target, const std::string& linear_dtype) {
  for (const Graph* graph : {&target.graph, target.ranking ? &*target.ranking : nullptr}) {
    if (graph == nullptr) continue;
    const bool is_plan = !graph->program_part().empty();
    if (is_plan && !linear_dtype.empty()) continue;
    if (graph->compiled && !linear_dtype.empty() && linear_dtype != "float32") {
      throw Error(ErrorKind::kTarget,
                  "target " + Repr(target.name) + ": needs linear layers in " + linear_dtype +
                      ", but its compiled graph holds no own operators; export it with --format "
                      "torchscript");
    }
    CheckUsable(target, *graph);
  }
}

/// As many runners as threads may profit from. A runner serves one caller at a time. Callers wait
/// here, not for torch's own runners: a caller that waits there is not told when another one fails.
class CompiledGraph::Runners {
 public:
  explicit Runners(const std::string& file)
      : num_free_(std::max(4U, 2 * std::thread::hardware_concurrency())),
        loader_(file, "model", false, num_free_) {}

  /// Returns the tensors that are kept apart from the code.
  std::vector<std::string> Names() { return loader_.get_constant_fqns(); }

  void SetWeights(std::unordered_map<std::string, at::Tensor> weights) {
    if (!weights.empty()) loader_.load_constants(weights, false, false, true);
  }

  std::vector<at::Tensor> Run(std::vector<at::Tensor> inputs) {
    const Turn turn(this);
    return loader_.boxed_run(std::move(inputs));
  }

 private:
  class Turn {
   public:
    explicit Turn(Runners* runners) : runners_(runners) {
      std::unique_lock<std::mutex> lock(runners->mutex_);
      runners->one_is_free_.wait(lock, [runners] { return runners->num_free_ > 0; });
      --runners->num_free_;
    }
    ~Turn() {
      {
        const std::lock_guard<std::mutex> lock(runners_->mutex_);
        ++runners_->num_free_;
      }
      runners_->one_is_free_.notify_one();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Runners* runners_;
  };

  std::mutex mutex_;
  std::condition_variable one_is_free_;
  std::size_t num_free_;
  torch::inductor::AOTIModelPackageLoader loader_;
};

Package::Package(const std::string& file, const Part& part) : name_(part.path) {
  CheckPartSize(file, part.size_bytes);
  file_ = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) {
    throw Error(ErrorKind::kMissingPart, "part " + Repr(name_) + ": cannot be read");
  }
  // Always checked: it is small, and a damaged graph can crash the process, while damaged rows only
  // give wrong numbers.
  if (Sha256Hex(FileBytes(path())) == part.sha256) return;
  close(file_);
  throw ChangedPart(name_);
}

Package::~Package() { close(file_); }

ProgramPart::ProgramPart(std::string name, std::string bytes) : name_(std::move(name)) {
  plan_ = InPart(name_, [&] { return std::make_shared<ops::StoredProgram>(std::move(bytes)); });
}

const std::vector<DenseWeight>& ProgramPart::dense() const { return plan_->file().dense; }

std::shared_ptr<const ops::Program> ProgramPart::Bind(
    const at::Tensor& rows, const std::map<std::string, at::Tensor>& weights,
    const std::string& linear_dtype) const {
  return InPart(name_, [&] { return plan_->Bind(rows, weights, linear_dtype); });
}

CompiledGraph::CompiledGraph(CompiledForm form, const std::map<std::string, at::Tensor>& weights)
    : form_(std::move(form)) {
  try {
    runners_ = std::make_unique<Runners>(form_.package->path());
    std::unordered_map<std::string, at::Tensor> replaced;
    for (const CompiledPart::Tensor& tensor : Dense()) {
      const auto found = weights.find(tensor.path);
      if (found == weights.end()) continue;
      weights_.emplace(*found);
      replaced.emplace(*found);
    }
    runners_->SetWeights(std::move(replaced));
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw Error(ErrorKind::kManifest, "part " + Repr(form_.package->name()) +
                                          ": not readable as a compiled graph: " +
                                          text.substr(0, std::min(text.find('\n'), size_t{200})));
  }
}

std::vector<CompiledPart::Tensor> CompiledGraph::Dense() const {
  const std::vector<std::string> names = runners_->Names();
  std::vector<CompiledPart::Tensor> dense;
  for (const CompiledPart::Tensor& tensor : form_.dense) {
    if (std::find(names.begin(), names.end(), tensor.path) != names.end()) dense.push_back(tensor);
  }
  return dense;
}

CompiledGraph::~CompiledGraph() = default;

c10::IValue CompiledGraph::Call(const std::vector<c10::IValue>& inputs) const {
  std::vector<at::Tensor> placed = CheckedInputs(inputs, *form_.signature, form_.is_ranking);
  placed.push_back(form_.rows);
  std::vector<at::Tensor> outputs = runners_->Run(std::move(placed));
  const std::vector<Output>& expected = form_.signature->outputs;
  c10::Dict<std::string, at::Tensor> named;
  for (std::size_t i = 0; i < std::min(outputs.size(), expected.size()); ++i) {
    named.insert(expected[i].name, std::move(outputs[i]));
  }
  return named;
}

}  // namespace recsys
