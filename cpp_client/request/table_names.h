#ifndef RECSYS_REQUEST_TABLE_NAMES_H_
#define RECSYS_REQUEST_TABLE_NAMES_H_

#include <map>
#include <string>

#include "recsys/signature.h"

namespace recsys {

/// Returns the names of all tables as people read them, by name: the last parts between points, as
/// many as tell a name from all others (recsys/base/table_names.py).
std::map<std::string, std::string> ShortTableNames(const Signature& signature);

}  // namespace recsys

#endif  // RECSYS_REQUEST_TABLE_NAMES_H_
