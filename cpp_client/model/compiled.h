#ifndef RECSYS_MODEL_COMPILED_H_
#define RECSYS_MODEL_COMPILED_H_

// Graphs that AOTInductor compiled (recsys/artifact/compiled.py). Shape letters: B batch, Q
// contexts, F features, N number of IDs.

#include <torch/script.h>

#include <memory>
#include <string>
#include <vector>

#include "check/files/manifest.h"
#include "recsys/signature.h"

namespace recsys {

/// Checks that this machine and this torch can run a target's compiled graphs. Throws Error
/// (kTarget): says what to do.
void CheckUsable(const Target& target);

/// A compiled graph that can be called from any number of threads.
class CompiledGraph {
 public:
  /// `file`: the package, whose digest was compared. `rows`: those of all lookups, in host memory.
  /// Throws Error (kManifest).
  CompiledGraph(const std::string& file, const Signature& signature, bool is_ranking,
                at::Tensor rows);
  ~CompiledGraph();
  CompiledGraph(const CompiledGraph&) = delete;
  CompiledGraph& operator=(const CompiledGraph&) = delete;

  /// Takes the inputs of the TorchScript graph and returns its outputs by name. Throws Error
  /// (kExecution) if the inputs do not fit: the code itself checks nothing but IDs.
  c10::IValue Call(const std::vector<c10::IValue>& inputs) const;

 private:
  class Runners;

  Signature signature_;
  bool is_ranking_;
  at::Tensor rows_;
  std::unique_ptr<Runners> runners_;
};

}  // namespace recsys

#endif  // RECSYS_MODEL_COMPILED_H_
