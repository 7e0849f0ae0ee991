#ifndef RECSYS_MODEL_GRAPHS_GRAPHS_H_
#define RECSYS_MODEL_GRAPHS_GRAPHS_H_

// A loaded model's graphs or programs, and their replacement by those with other dense weights
// (recsys/artifact/graphs.py).

#include <torch/script.h>

#include <memory>
#include <string>
#include <vector>

#include "format/delta_header.h"
#include "model/graphs/programs.h"
#include "model/graphs/skeleton.h"
#include "recsys/model.h"
#include "recsys/signature.h"

namespace recsys {
class Answers;
namespace ops {
class ProgramGraph;
}

/// A graph or a program that can be called from any number of threads.
class Callable {
 public:
  /// Takes a frozen form.
  explicit Callable(const torch::jit::Module& module)
      : self_(module._ivalue()), forward_(&module.get_method("forward").function()) {}
  explicit Callable(std::shared_ptr<const ops::ProgramGraph> program)
      : program_(std::move(program)) {}

  /// `shared`: for a program's only context; null for none. Throws torch's exceptions.
  c10::IValue Call(std::vector<c10::IValue> inputs, SharedContext* shared = nullptr) const;
  /// Null of a graph.
  const ops::ProgramGraph* program() const { return program_.get(); }

 private:
  /// Null of a program.
  torch::jit::ObjectPtr self_;
  torch::jit::Function* forward_ = nullptr;
  /// Null of a graph.
  std::shared_ptr<const ops::ProgramGraph> program_;
};

/// Other weights of a model's forms, and the forms frozen with them.
struct GraphChange {
  /// By form; of programs one, with all that are not the parts'.
  std::vector<TensorMap> weights;
  std::vector<Callable> frozen;
};

/// The plain form of a model, and its ranking form if it has one. A frozen graph has folded what
/// can be computed from its constants and merged equal ones, so weights are not written into it:
/// the modules are frozen again, and the graphs replaced as a whole.
class LoadedGraphs {
 public:
  /// Takes the scripted forms with their tensors in place, not frozen.
  /// `mappings`: the buckets of mappings, by path, which deltas change in place and do not replace.
  LoadedGraphs(std::vector<torch::jit::Module> modules, Plan plan, TensorMap mappings);
  /// Binds programs. Throws Error (kManifest).
  LoadedGraphs(ProgramForms programs, TensorMap mappings);

  const Callable& plain() const { return frozen_[0]; }
  /// Null if the model has no ranking form.
  const Callable* ranking() const { return frozen_.size() > 1 ? &frozen_[1] : nullptr; }

  /// Returns why a cache of contexts would hold nothing; empty if it would.
  std::string why_no_context_cache() const;

  /// Checks that every dense weight of a delta is a tensor of a form, with its type and shape.
  /// Throws Error (kManifest).
  void Check(const DeltaHeader& header) const;

  /// Returns the forms with other weights, by path in host memory, which Check has admitted. They
  /// have been called until the executor has optimized them, with the rows of `verified` unless it
  /// is null. Nothing changes yet.
  GraphChange WithWeights(const TensorMap& weights, const Signature& signature,
                          const Answers* verified);

  /// Sets the new forms, while no batch runs.
  void Write(const GraphChange& change);

 private:
  std::vector<Callable> Frozen() const;
  /// Returns the programs with these weights, and the mappings, instead of their own.
  std::vector<Callable> Bound(const TensorMap& weights) const;
  /// Returns the programs with other weights beside those that were set before.
  GraphChange Rebound(const TensorMap& weights) const;
  /// Returns the dense weights of each form, without mappings.
  std::vector<TensorMap> Dense() const;

  std::vector<torch::jit::Module> modules_;
  Plan plan_;
  TensorMap mappings_;
  /// Instead of modules.
  ProgramForms programs_;
  std::vector<Callable> frozen_;
  /// Instead of the weights that the programs' parts hold.
  TensorMap weights_;
};

}  // namespace recsys

#endif  // RECSYS_MODEL_GRAPHS_GRAPHS_H_
