#ifndef RECSYS_ENGINE_SETTINGS_READ_SETTINGS_H_
#define RECSYS_ENGINE_SETTINGS_READ_SETTINGS_H_

#include <string_view>

#include "engine/settings/settings.h"

namespace recsys {

/// Reads a JSON object with the names of the settings' fields, and checks it. Unknown names and
/// wrong types are refused; fields that are missing or null keep their defaults. Throws Error
/// (kConfig). For EngineSettings, PortSettings, VersionSettings, RouteSpec and SubmitOptions.
template <typename Settings>
Settings ReadSettings(std::string_view json);

}  // namespace recsys

#endif  // RECSYS_ENGINE_SETTINGS_READ_SETTINGS_H_
