#include "ops/torch/dtypes.h"

#include <algorithm>
#include <array>
#include <utility>

namespace recsys {
namespace {

constexpr std::array<std::pair<const char*, at::ScalarType>, 9> kDtypes = {
    {{"float64", at::kDouble},
     {"float32", at::kFloat},
     {"float16", at::kHalf},
     {"bfloat16", at::kBFloat16},
     {"int64", at::kLong},
     {"int32", at::kInt},
     {"int16", at::kShort},
     {"int8", at::kChar},
     {"uint8", at::kByte}}};

}  // namespace

at::ScalarType ScalarTypeOf(const std::string& dtype) {
  const auto* const found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                         [&](const auto& known) { return known.first == dtype; });
  TORCH_CHECK(found != kDtypes.end(), "dtype: got ", dtype, ", which no dense weight has");
  return found->second;
}

std::string DtypeName(at::ScalarType type) {
  for (const auto& [name, known] : kDtypes) {
    if (known == type) return name;
  }
  return std::string(c10::getDtypeNames(type).first);
}

}  // namespace recsys
