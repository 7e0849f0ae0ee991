#ifndef RECSYS_WIRE_CONTEXT_NAMES_H_
#define RECSYS_WIRE_CONTEXT_NAMES_H_

#include <string_view>
#include <vector>

#include "recsys/signature.h"

namespace recsys {

/// Which of a model's inputs a request's parameter `context` names.
class ContextNames {
 public:
  /// `text`: names with commas between them; white space around them, and empty ones, count for
  /// nothing. Nothing is kept of it, however long it is. Throws Error: one is no input's.
  ContextNames(std::string_view text, const Signature& signature);

  bool any() const { return !named_.empty(); }
  /// By the input's number: dense ones first, then sparse ones.
  bool Has(std::size_t input) const { return !named_.empty() && named_[input]; }

 private:
  /// Empty for none.
  std::vector<bool> named_;
};

}  // namespace recsys

#endif  // RECSYS_WIRE_CONTEXT_NAMES_H_
