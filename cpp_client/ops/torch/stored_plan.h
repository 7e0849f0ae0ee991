#ifndef RECSYS_OPS_TORCH_STORED_PLAN_H_
#define RECSYS_OPS_TORCH_STORED_PLAN_H_

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check/files/plan_file.h"
#include "ops/torch/graph/direct.h"

namespace recsys::ops {

/// A graph that is plans, read from a part of an artifact. Neither TorchScript nor the compiled
/// graph is needed to run it. Threads may share it.
class StoredPlan {
 public:
  /// Dense weights by path.
  using Weights = std::map<std::string, at::Tensor>;

  /// Throws recsys::Error for a file that does not fit.
  explicit StoredPlan(std::string bytes);

  /// Returns the graph over an artifact's rows. `weights`: in the place of the file's; others are
  /// ignored. `linear_dtype`: in which linear layers multiply. Throws recsys::Error if the parts do
  /// not fit each other.
  std::shared_ptr<DirectGraph> Bind(const at::Tensor& rows, const Weights& weights,
                                    const std::string& linear_dtype) const;

 private:
  at::Tensor TensorOf(const FileTensor& tensor) const;
  at::Tensor ConstantOf(const PlanConstant& constant, const at::Tensor& rows,
                        const Weights& weights, const std::string& linear_dtype) const;

  const std::string bytes_;
  const PlanFile file_;
};

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_STORED_PLAN_H_
