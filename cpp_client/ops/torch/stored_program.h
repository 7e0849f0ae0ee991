#ifndef RECSYS_OPS_TORCH_STORED_PROGRAM_H_
#define RECSYS_OPS_TORCH_STORED_PROGRAM_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/program_file.h"
#include "ops/torch/program_graph.h"

namespace recsys::ops {

/// How many steps of a kind there are.
struct StepCounts {
  std::int64_t linear = 0, products = 0, lookups = 0, all = 0;
};

/// A program, read from a part of an artifact. Threads may share it.
class StoredProgram {
 public:
  /// Dense weights by path.
  using Weights = std::map<std::string, at::Tensor>;

  /// `bytes`: of the part; they must live as long as this object. Throws recsys::Error for a file
  /// that does not fit.
  explicit StoredProgram(std::string_view bytes);

  /// Returns the graph over an artifact's rows. `weights` replace the file's; others are
  /// ignored. `linear_dtype`: in which linear layers multiply. `contexts`: of a ranking form.
  /// `outside`: rows outside the process; null for none.
  /// Throws recsys::Error if the parts do not fit each other.
  std::shared_ptr<ProgramGraph> Bind(const at::Tensor& rows, const Weights& weights,
                                     const std::string& linear_dtype,
                                     const ContextInputs& contexts = {},
                                     const std::shared_ptr<OutsideRows>& outside = nullptr) const;

  const ProgramFile& file() const { return file_; }
  /// Throws recsys::Error for programs that do not fit.
  StepCounts Counts() const;

 private:
  /// Returns a tensor of the file, which lies in `bytes_` where it is aligned there.
  at::Tensor ViewOf(const FileTensor& tensor) const;
  at::Tensor ConstantOf(const ProgramConstant& constant, const at::Tensor& rows,
                        const Weights& weights, const std::string& linear_dtype) const;

  RegionStep RegionOf(const FileStep& step, const Weights& weights) const;

  const std::string_view bytes_;
  const ProgramFile file_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_STORED_PROGRAM_H_
