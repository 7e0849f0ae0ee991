#include "config/build.h"

#include <algorithm>
#include <set>

#include "config/fields.h"
#include "recsys/error.h"

namespace recsys {
namespace {

SettingPath Below(const SettingPath& path, const std::string& name) {
  SettingPath at = path;
  at.push_back(name);
  return at;
}

/// The settings below `path` that nobody may leave out.
bool IsNeeded(const SettingPath& path) {
  for (const Section& section : Sections()) {
    for (const Option& option : section.options) {
      if (option.path == path) return !option.default_text;
    }
  }
  return false;
}

/// A check's own words begin with the field; in front of it belongs who gave it.
[[noreturn]] void RefuseOutOfRange(const SettingPath& path, const Values& given,
                                   const std::string& text) {
  const std::string key = KeyOf(Below(path, text));
  const std::string field = text.substr(0, text.find(':'));
  const Given* by = given.Find(Below(path, field));
  // A setting may be wrong only beside another of its table: then that one was given.
  for (const auto& [at, one] : given.all()) {
    if (by == nullptr && SettingPath(at.begin(), at.end() - 1) == path) by = &one;
  }
  throw Error(ErrorKind::kConfig, by == nullptr ? key : by->origin + ": " + key);
}

template <typename S>
void Build(const SettingPath& path, const Values& given, S* settings);

ModelSettings BuildModel(const std::string& name, const Values& given);

/// Fills the fields of the struct at one path.
class Filler {
 public:
  Filler(SettingPath path, const Values& given) : path_(std::move(path)), given_(given) {}

  void operator()(const char* name, bool& field) { Take(name, &field); }
  void operator()(const char* name, std::int64_t& field) { Take(name, &field); }
  void operator()(const char* name, double& field) { Take(name, &field); }
  void operator()(const char* name, std::string& field) { Take(name, &field); }
  void operator()(const char* name, std::vector<std::int64_t>& field) { Take(name, &field); }
  void operator()(const char* name, std::vector<std::string>& field) { Take(name, &field); }
  void operator()(const char* name, std::optional<std::int64_t>& field) { TakeSome(name, &field); }
  void operator()(const char* name, std::optional<std::string>& field) { TakeSome(name, &field); }

  void operator()(const char*, std::map<std::string, ModelSettings>& models) {
    std::set<std::string> names;
    for (const auto& [path, one] : given_.all()) {
      if (path.front() == kModelsTable) names.insert(path[1]);
    }
    for (const std::string& name : names) models[name] = BuildModel(name, given_);
  }

  template <typename S>
  void operator()(const char* name, std::optional<S>& settings) {
    const SettingPath at = Below(path_, name);
    if (given_.FirstBelow(at) == nullptr) return;
    settings.emplace();
    Build(at, given_, &*settings);
  }

  template <typename S>
  void operator()(const char* name, S& settings) {
    Build(Below(path_, name), given_, &settings);
  }

 private:
  template <typename T>
  void Take(const char* name, T* field) {
    const SettingPath at = Below(path_, name);
    if (const Given* found = given_.Find(at)) {
      *field = std::get<T>(found->value);
    } else if (IsNeeded(at)) {
      throw Error(ErrorKind::kConfig, given_.FirstBelow(path_)->origin + ": " + KeyOf(at) +
                                          ": missing, expected it beside the other settings of " +
                                          KeyOf(path_));
    }
  }

  template <typename T>
  void TakeSome(const char* name, std::optional<T>* field) {
    const Given* found = given_.Find(Below(path_, name));
    if (found == nullptr) return;
    field->reset();
    if (const T* value = std::get_if<T>(&found->value)) *field = *value;
  }

  SettingPath path_;
  const Values& given_;
};

template <typename S>
void Build(const SettingPath& path, const Values& given, S* settings) {
  VisitFields(*settings, Filler(path, given));
  try {
    settings->Check();
  } catch (const Error& error) {
    RefuseOutOfRange(path, given, error.what());
  }
}

/// What its own table does not say, `defaults` says.
ModelSettings BuildModel(const std::string& name, const Values& given) {
  Values own;
  for (const auto& [path, one] : given.all()) {
    if (path.front() != kDefaultsTable) continue;
    SettingPath at{kModelsTable, name};
    at.insert(at.end(), path.begin() + 1, path.end());
    own.Set(at, one);
  }
  for (const auto& [path, one] : given.all()) own.Set(path, one);
  ModelSettings settings;
  Build({kModelsTable, name}, own, &settings);
  return settings;
}

}  // namespace

Settings BuildSettings(const Values& given) {
  Settings settings;
  Build({"source"}, given, &settings.source);
  Build({"process"}, given, &settings.process);
  Build({}, given, &settings.server);
  return settings;
}

}  // namespace recsys
