#include "engine/settings/read_settings.h"

#include <type_traits>
#include <utility>

#include "engine/settings/json_fields.h"

namespace recsys {
namespace {

template <typename Settings>
void ReadFields(JsonFields* fields, Settings* settings) {
  Settings::ForEach(*settings, [fields](const char* name, auto& value, const Bounds&) {
    if constexpr (std::is_aggregate_v<std::decay_t<decltype(value)>>) {
      if (std::optional<JsonFields> inner = fields->Object(name)) ReadFields(&*inner, &value);
    } else {
      fields->Read(name, &value);
    }
  });
  fields->Finish();
}

template <typename Settings>
constexpr const char* kNameOf = nullptr;
template <>
constexpr const char* kNameOf<EngineSettings> = "the engine's settings";
template <>
constexpr const char* kNameOf<PortSettings> = "the port's settings";
template <>
constexpr const char* kNameOf<VersionSettings> = "the version's settings";
template <>
constexpr const char* kNameOf<RouteSpec> = "the route table";
template <>
constexpr const char* kNameOf<SubmitOptions> = "the request's options";

}  // namespace

template <typename Settings>
Settings ReadSettings(std::string_view json) {
  Settings settings;
  JsonFields fields(json, kNameOf<Settings>);
  ReadFields(&fields, &settings);
  settings.Check();
  return settings;
}

template EngineSettings ReadSettings(std::string_view);
template PortSettings ReadSettings(std::string_view);
template VersionSettings ReadSettings(std::string_view);
template RouteSpec ReadSettings(std::string_view);
template SubmitOptions ReadSettings(std::string_view);

}  // namespace recsys
