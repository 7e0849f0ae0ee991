#ifndef RECSYS_OPS_TORCH_OPERATORS_H_
#define RECSYS_OPS_TORCH_OPERATORS_H_

#include <ATen/ATen.h>

#include <string>

#include "ops/packed.h"

namespace recsys::ops {

/// Registers the operators of namespace recsys_ops with torch; does nothing if they are registered,
/// also by another copy of this library. Thread-safe.
void RegisterOperators();

/// Packs weights and a bias of shapes that recsys_ops::pack_linear takes, with finite numbers.
at::Tensor PackWeights(const at::Tensor& weight, const c10::optional<at::Tensor>& bias,
                       c10::string_view dtype);

/// Whether numbers in float32 are finite.
bool IsFinite(const at::Tensor& weight);

/// Returns the type in which linear layers of a type multiply on this processor: bfloat16 ones in
/// float32 where no instruction multiplies bfloat16 faster.
std::string MultipliesIn(const std::string& linear_dtype);

/// Returns the type in which interactions multiply beside linear layers of a type.
WeightType DotTypeOf(const std::string& linear_dtype);

/// Reads packed weights and checks them; copies them if they are not aligned. `packed` must outlive
/// what is returned.
Packed WeightsOf(at::Tensor* packed);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_TORCH_OPERATORS_H_
