#include "request/table_names.h"

#include <cstddef>
#include <vector>

namespace recsys {
namespace {

/// A name of a table, and where the part begins that is shown.
struct Shortened {
  std::size_t start;

  /// Shows one more part, if there is one.
  bool Extend(const std::string& name) {
    if (start == 0) return false;
    const std::size_t point = start < 2 ? std::string::npos : name.rfind('.', start - 2);
    start = point == std::string::npos ? 0 : point + 1;
    return true;
  }
};

}  // namespace

std::map<std::string, std::string> ShortTableNames(const Signature& signature) {
  std::map<std::string, Shortened> shown;
  for (const SparseInput& input : signature.sparse) {
    for (const TableUse& table : input.tables) {
      const std::size_t point = table.name.rfind('.');
      shown[table.name] = {point == std::string::npos ? 0 : point + 1};
    }
  }
  while (true) {
    std::map<std::string, std::string> names;
    std::map<std::string, std::size_t> counts;
    for (const auto& [name, cut] : shown) ++counts[names[name] = name.substr(cut.start)];
    bool has_longer = false;
    for (auto& [name, cut] : shown) {
      const std::string& text = names[name];
      if (counts[text] > 1 || text.empty()) has_longer = cut.Extend(name) || has_longer;
    }
    if (!has_longer) return names;
  }
}

}  // namespace recsys
