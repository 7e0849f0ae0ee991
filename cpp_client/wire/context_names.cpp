#include "wire/context_names.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

std::string_view Stripped(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

}  // namespace

ContextNames::ContextNames(std::string_view text, const Signature& signature) {
  if (text.empty()) return;
  std::unordered_map<std::string_view, std::size_t> known;
  for (const DenseInput& input : signature.dense) known.emplace(input.name, known.size());
  for (const SparseInput& input : signature.sparse) known.emplace(input.name, known.size());
  std::optional<std::string_view> unknown;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string_view name = Stripped(text.substr(start, end - start));
    start = end + 1;
    if (name.empty()) continue;
    const auto found = known.find(name);
    if (found == known.end()) {
      if (!unknown || name < *unknown) unknown = name;
    } else {
      named_.resize(signature.dense.size() + signature.sparse.size());
      named_[found->second] = true;
    }
  }
  if (!unknown) return;
  std::vector<std::string> names;
  for (const DenseInput& input : signature.dense) names.push_back(input.name);
  for (const SparseInput& input : signature.sparse) names.push_back(input.name);
  throw Error(ErrorKind::kRequest, "parameters['context']: got an unknown input " +
                                       Repr(FirstChars(*unknown, 64)) + ", expected " +
                                       Listed(names));
}

}  // namespace recsys
