#include "wire/context_names.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

/// Whether Python's str.strip() removes the character.
bool IsSpace(std::uint32_t code) {
  if (code < 0x80)
    return code == ' ' || (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x1F);
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

std::string_view Stripped(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char first = CharAt(text, 0);
    if (!IsSpace(first.code)) break;
    text.remove_prefix(first.num_bytes);
  }
  while (!text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!IsSpace(CharAt(text, at).code)) break;
    text = text.substr(0, at);
  }
  return text;
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
