#ifndef RECSYS_OPS_TORCH_DTYPES_H_
#define RECSYS_OPS_TORCH_DTYPES_H_

#include <ATen/ATen.h>

#include <string>

namespace recsys {

/// Returns the type of a dense weight by its name in manifests (DenseDtypeNames()).
at::ScalarType ScalarTypeOf(const std::string& dtype);

/// Returns the name; torch's for a type that no dense weight has.
std::string DtypeName(at::ScalarType type);

}  // namespace recsys

#endif  // RECSYS_OPS_TORCH_DTYPES_H_
