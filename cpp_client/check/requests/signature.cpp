#include "recsys/signature.h"

#include <algorithm>
#include <limits>

namespace recsys {

std::optional<std::int64_t> SparseInput::id_limit() const {
  std::optional<std::int64_t> limit;
  for (const TableUse& use : tables) {
    if (use.id_policy != IdPolicy::kReject) continue;
    limit = limit ? std::min(*limit, use.num_embeddings) : use.num_embeddings;
  }
  return limit;
}

std::int64_t Output::num_elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) {
    // An untrusted manifest may state any shape; no graph returns that much.
    if (__builtin_mul_overflow(product, size, &product))
      return std::numeric_limits<std::int64_t>::max();
  }
  return product;
}

bool Signature::is_weighted() const {
  return std::any_of(sparse.begin(), sparse.end(),
                     [](const SparseInput& input) { return input.weighted; });
}

bool Signature::has_integers() const {
  return std::any_of(outputs.begin(), outputs.end(),
                     [](const Output& output) { return output.type == OutputType::kInt64; });
}

bool Signature::InContext(const std::string& name) const {
  return std::find(context.begin(), context.end(), name) != context.end();
}

}  // namespace recsys
