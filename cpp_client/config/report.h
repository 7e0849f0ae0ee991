#ifndef RECSYS_CONFIG_REPORT_H_
#define RECSYS_CONFIG_REPORT_H_

#include <string>
#include <vector>

#include "config/check.h"
#include "config/effective.h"

namespace recsys {

/// The settings that hold, each with where it came from, and what was found: one line of JSON, as
/// Python's server writes it, with its end.
std::string JsonReport(const Effective& effective, const std::vector<Finding>& findings);

/// The same for people, without the errors, which go to stderr. `columns`: how wide it may be.
std::string TextReport(const Effective& effective, const std::vector<Finding>& findings,
                       int columns);

}  // namespace recsys

#endif  // RECSYS_CONFIG_REPORT_H_
