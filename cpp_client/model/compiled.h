#ifndef RECSYS_MODEL_COMPILED_H_
#define RECSYS_MODEL_COMPILED_H_

// Graphs that AOTInductor compiled (recsys/artifact/compiled.py). Shape letters: B batch, Q
// contexts, F features, N number of IDs.

#include <torch/script.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check/files/manifest.h"
#include "check/files/program_file.h"
#include "recsys/signature.h"

namespace recsys {

namespace ops {
class Program;
class StoredProgram;
}  // namespace ops

/// Checks that this machine and this torch can run a target's compiled graphs. Those that are plans
/// of own operators run anywhere, with `linear_dtype` as LoadedGraphs takes it. Throws Error
/// (kTarget): says what to do.
void CheckUsable(const Target& target, const std::string& linear_dtype);

/// An open package: it can be loaded again after another file has taken its name.
class Package {
 public:
  /// Opens a part of an artifact, and compares its size and digest. Throws Error.
  Package(const std::string& file, const Part& part);
  ~Package();
  Package(const Package&) = delete;
  Package& operator=(const Package&) = delete;

  const std::string& name() const { return name_; }
  /// A path that leads to the open file.
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  std::string name_;
  int file_;
};

/// A part that holds a program.
class ProgramPart {
 public:
  /// `bytes`: its digest was compared. Throws Error (kManifest).
  ProgramPart(std::string name, std::string bytes);

  /// Returns the dense weights of the model; empty in parts of earlier releases.
  const std::vector<DenseWeight>& dense() const;

  /// Returns the graph over these rows. `weights`: in the place of the part's, by path. Throws
  /// Error (kManifest).
  std::shared_ptr<const ops::Program> Bind(const at::Tensor& rows,
                                           const std::map<std::string, at::Tensor>& weights,
                                           const std::string& linear_dtype) const;

 private:
  const std::string name_;
  std::shared_ptr<const ops::StoredProgram> plan_;
};

/// What is needed to load a form, as often as its weights change.
struct CompiledForm {
  /// One of the two is null.
  std::shared_ptr<const Package> package;
  std::shared_ptr<const ProgramPart> plan;
  std::vector<CompiledPart::Tensor> dense;
  const Signature* signature = nullptr;
  bool is_ranking = false;
  /// Those of all lookups, in host memory.
  at::Tensor rows;
  /// In which linear layers of a plan multiply.
  std::string linear_dtype;
};

/// A compiled graph that can be called from any number of threads.
class CompiledGraph {
 public:
  /// `weights`: those in the place of the package's, by path; not copied. Throws Error (kManifest).
  CompiledGraph(CompiledForm form, const std::map<std::string, at::Tensor>& weights);
  ~CompiledGraph();
  CompiledGraph(const CompiledGraph&) = delete;
  CompiledGraph& operator=(const CompiledGraph&) = delete;

  /// Returns the dense weights that can be replaced.
  std::vector<CompiledPart::Tensor> Dense() const;

  /// Takes the inputs of the TorchScript graph and returns its outputs by name. Throws Error
  /// (kExecution) if the inputs do not fit: the code itself checks nothing but IDs.
  c10::IValue Call(const std::vector<c10::IValue>& inputs) const;

 private:
  class Runners;

  CompiledForm form_;
  std::map<std::string, at::Tensor> weights_;
  std::unique_ptr<Runners> runners_;
};

}  // namespace recsys

#endif  // RECSYS_MODEL_COMPILED_H_
