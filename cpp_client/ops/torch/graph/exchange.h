#ifndef RECSYS_OPS_TORCH_GRAPH_EXCHANGE_H_
#define RECSYS_OPS_TORCH_GRAPH_EXCHANGE_H_

#include <torch/csrc/jit/api/module.h>

#include <string>
#include <vector>

namespace recsys::ops {

/// What became of a frozen graph's operators.
struct Exchanged {
  int num_linear = 0;
  int num_dot = 0;
  int num_lookup = 0;
  /// Nodes that plans compute, these included.
  int num_planned = 0;
  /// Operators that stay, and why.
  std::vector<std::string> left;
};

/// Exchanges operators of a frozen graph on the CPU for those of recsys_ops: linear layers with the
/// activation behind them, the interaction of a DLRM, and lookups with the checks before them.
/// With `plans`, one operator computes what can be computed row by row (ops/plan.h). `dtype` is
/// that of the linear layers' products: float32, bfloat16 or int8. The weights are packed; the
/// module's own stay as they are.
Exchanged Exchange(torch::jit::Module* frozen, const std::string& dtype, bool plans = true);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_GRAPH_EXCHANGE_H_
