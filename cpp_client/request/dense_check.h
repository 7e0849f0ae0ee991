#ifndef RECSYS_REQUEST_DENSE_CHECK_H_
#define RECSYS_REQUEST_DENSE_CHECK_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "format/wide.h"
#include "recsys/request.h"
#include "recsys/signature.h"

namespace recsys {

/// Throws Error (kRequestTooLarge) if a request exceeds the limits.
void CheckSizes(const RequestLimits& limits, std::int64_t num_rows, Wide num_ids, Wide num_bytes);

/// Returns the index of the first of `num` little-endian float32 that is not finite; `num` if all
/// are.
std::int64_t FirstNonFinite(const char* floats, std::int64_t num);

/// Returns the index of the first infinity; `num` if there is none.
std::int64_t FirstInfinite(const char* floats, std::int64_t num);

/// Returns `nan`, `inf` or `-inf`, as numpy writes them.
std::string NonFiniteText(const char* floats, std::int64_t at);

/// Checks one dense input.
struct DenseCheck {
  const DenseInput& input;
  std::int64_t num_rows;
  /// Whether it was given once for all rows; for messages.
  bool once;

  /// Throws Error (kRequest).
  void Run(std::string_view values, bool allow_non_finite) const;
};

}  // namespace recsys

#endif  // RECSYS_REQUEST_DENSE_CHECK_H_
