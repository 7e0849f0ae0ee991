#include "config/effective.h"

#include <algorithm>

#include "config/build.h"
#include "config/fields.h"

namespace recsys {
namespace {

/// Collects the values of all fields.
class Collector {
 public:
  Collector(SettingPath path, Values* values) : path_(std::move(path)), values_(values) {}

  void operator()(const char* name, bool value) { Keep(name, value); }
  void operator()(const char* name, std::int64_t value) { Keep(name, value); }
  void operator()(const char* name, double value) { Keep(name, value); }
  void operator()(const char* name, const std::string& value) { Keep(name, value); }
  void operator()(const char* name, const std::vector<std::int64_t>& value) { Keep(name, value); }
  void operator()(const char* name, const std::vector<std::string>& value) { Keep(name, value); }
  void operator()(const char* name, const std::optional<std::int64_t>& value) {
    Keep(name, value ? Value(*value) : Value());
  }
  void operator()(const char* name, const std::optional<std::string>& value) {
    Keep(name, value ? Value(*value) : Value());
  }
  void operator()(const char*, const std::map<std::string, ModelSettings>&) {}
  template <typename S>
  void operator()(const char* name, const std::optional<S>& settings) {
    if (settings) (*this)(name, *settings);
  }
  template <typename S>
  void operator()(const char* name, const S& settings) {
    SettingPath path = path_;
    path.emplace_back(name);
    VisitFields(settings, Collector(path, values_));
  }

 private:
  void Keep(const char* name, Value value) {
    SettingPath path = path_;
    path.emplace_back(name);
    values_->Set(path, {std::move(value), ""});
  }

  SettingPath path_;
  Values* values_;
};

}  // namespace

Values ValuesOf(const Settings& settings) {
  Values values;
  VisitFields(settings.source, Collector({"source"}, &values));
  VisitFields(settings.process, Collector({"process"}, &values));
  VisitFields(settings.server, Collector({}, &values));
  return values;
}

std::vector<Effective::Row> Effective::Rows() const {
  std::vector<Row> rows;
  const Values values = ValuesOf(settings);
  for (const Section& section : Sections()) {
    for (const Option& option : section.options) {
      const Given* value = values.Find(option.path);
      if (value == nullptr) continue;
      const Given* by = given.Find(option.path);
      rows.push_back({option.key(), value->value, by == nullptr ? "default" : by->origin});
    }
  }
  std::map<SettingPath, const Given*> of_models;
  for (const auto& [path, one] : given.all()) {
    if (path.front() == kModelsTable && path.size() > 2) of_models.emplace(path, &one);
  }
  for (const auto& [path, one] : of_models) rows.push_back({KeyOf(path), one->value, one->origin});
  return rows;
}

Effective MakeEffective(const Texts& flags, const Texts& environment,
                        const std::optional<std::string>& file) {
  std::optional<std::string> named = file;
  for (const auto& [name, text] : environment) {
    if (!named && name == kConfigEnvironment && !text.empty()) named = CleanPath(text);
  }
  Effective found;
  if (named) ReadFile(*named, &found.given);
  ReadEnvironment(environment, &found.given);
  ReadFlags(flags, &found.given);
  found.settings = BuildSettings(found.given);
  return found;
}

}  // namespace recsys
