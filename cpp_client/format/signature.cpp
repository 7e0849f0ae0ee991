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

std::vector<std::int64_t> Output::Dims(std::int64_t num_rows) const {
  std::vector<std::int64_t> dims;
  ForEachSize(num_rows, [&](std::int64_t size) { dims.push_back(size); });
  return dims;
}

std::int64_t Output::num_elements(std::int64_t num_rows) const {
  std::int64_t product = 1;
  bool is_whole = true;
  ForEachSize(num_rows, [&](std::int64_t size) {
    is_whole = is_whole && !__builtin_mul_overflow(product, size, &product);
  });
  // An untrusted manifest may state any shape; no graph returns that much.
  return is_whole ? product : std::numeric_limits<std::int64_t>::max();
}

bool Signature::is_weighted() const {
  return std::any_of(sparse.begin(), sparse.end(),
                     [](const SparseInput& input) { return input.weighted; });
}

bool Signature::has_integers() const {
  return std::any_of(outputs.begin(), outputs.end(),
                     [](const Output& output) { return output.type == OutputType::kInt64; });
}

const Output* Signature::without_rows() const {
  const auto found = std::find_if(outputs.begin(), outputs.end(),
                                  [](const Output& output) { return output.batch_dims.empty(); });
  return found == outputs.end() ? nullptr : &*found;
}

bool Signature::InContext(const std::string& name) const {
  return std::find(context.begin(), context.end(), name) != context.end();
}

std::optional<std::size_t> Signature::SameLengthsAs(const SparseInput& input) const {
  if (input.same_lengths_as.empty()) return std::nullopt;
  const auto found = std::find_if(sparse.begin(), sparse.end(), [&](const SparseInput& other) {
    return other.name == input.same_lengths_as;
  });
  if (found == sparse.end()) return std::nullopt;
  return static_cast<std::size_t>(found - sparse.begin());
}

}  // namespace recsys
