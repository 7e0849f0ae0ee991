#ifndef RECSYS_WIRE_CONTEXT_NAMES_H_
#define RECSYS_WIRE_CONTEXT_NAMES_H_

#include <string_view>
#include <vector>

#include "recsys/signature.h"

namespace recsys {

/// The model inputs named by a request's `context` parameter.
class ContextNames {
 public:
  /// `text`: comma-separated names; white space around them and empty names are ignored. The text
  /// is not kept, however long it is. Throws Error if a name is not an input's.
  ContextNames(std::string_view text, const Signature& signature);

  bool any() const { return !named_.empty(); }
  /// By the input's number: dense inputs first, then sparse ones.
  bool Has(std::size_t input) const { return !named_.empty() && named_[input]; }

 private:
  /// Empty if no input is named.
  std::vector<bool> named_;
};

}  // namespace recsys

#endif  // RECSYS_WIRE_CONTEXT_NAMES_H_
