#ifndef RECSYS_CONFIG_BUILD_H_
#define RECSYS_CONFIG_BUILD_H_

#include "config/given.h"
#include "config/settings.h"

namespace recsys {

/// Settings from what was given; the rest has its defaults. Throws Error (kConfig) where a value is
/// out of its range or a needed one is missing: who gave it, its key, what it is and what it should
/// be.
Settings BuildSettings(const Values& given);

}  // namespace recsys

#endif  // RECSYS_CONFIG_BUILD_H_
