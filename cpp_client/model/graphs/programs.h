#ifndef RECSYS_MODEL_GRAPHS_PROGRAMS_H_
#define RECSYS_MODEL_GRAPHS_PROGRAMS_H_

// Programs of a loaded model (recsys/artifact/programs.py).

#include <torch/script.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "format/program_file.h"
#include "ops/torch/contexts/context_batch.h"
#include "recsys/signature.h"

namespace recsys {

namespace ops {
class OutsideRows;
class ProgramGraph;
class StoredProgram;
}  // namespace ops

/// A part that holds a program.
class ProgramPart {
 public:
  /// `bytes`: its digest was compared. Throws Error (kManifest).
  ProgramPart(std::string name, std::string bytes);

  /// Returns the dense weights of the model that deltas may change.
  const std::vector<DenseWeight>& dense() const;

  /// Returns the graph over these rows. `weights`: replace the part's, by path; `contexts`: of a
  /// ranking form; `outside`: null for none. Throws Error (kManifest).
  std::shared_ptr<const ops::ProgramGraph> Bind(
      const at::Tensor& rows, const std::map<std::string, at::Tensor>& weights,
      const std::string& linear_dtype, const ops::ContextInputs& contexts,
      const std::shared_ptr<ops::OutsideRows>& outside) const;

 private:
  const std::string name_;
  /// The program reads them as long as it lives.
  std::shared_ptr<const std::string> bytes_;
  std::shared_ptr<const ops::StoredProgram> program_;
};

/// The programs of a target, and what is needed to bind them as often as their weights change.
struct ProgramForms {
  /// That of the plain form, and that of the ranking form if there is one.
  std::vector<ProgramPart> parts;
  /// Those of all lookups, in host memory.
  at::Tensor rows;
  /// In which linear layers multiply.
  std::string linear_dtype;
  /// Those that lie outside the process; null if none do.
  std::shared_ptr<ops::OutsideRows> outside = nullptr;
  /// Those of the ranking form.
  ops::ContextInputs contexts;
};

/// Returns the inputs of a model's ranking form. `cache`: null for none.
ops::ContextInputs ContextInputsOf(const Signature& signature,
                                   std::shared_ptr<ops::ContextCache> cache);

}  // namespace recsys

#endif  // RECSYS_MODEL_GRAPHS_PROGRAMS_H_
