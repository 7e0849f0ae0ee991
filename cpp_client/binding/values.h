#ifndef RECSYS_BINDING_VALUES_H_
#define RECSYS_BINDING_VALUES_H_

// Texts and bytes of events as values of Python. The GIL must be held.

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>
#include <vector>

namespace recsys {

/// Returns text that may have come over the wire: invalid UTF-8 is replaced by U+FFFD.
pybind11::str Text(std::string_view text);

/// Returns strings as bytes.
pybind11::list Raw(const std::vector<std::string>& all);

}  // namespace recsys

#endif  // RECSYS_BINDING_VALUES_H_
