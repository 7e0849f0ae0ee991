#ifndef RECSYS_ENGINE_SETTINGS_JSON_FIELDS_H_
#define RECSYS_ENGINE_SETTINGS_JSON_FIELDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "format/json/json.h"
#include "recsys/error.h"

namespace recsys {

/// Reads the fields of one JSON object of settings. A missing or null field leaves its value
/// unchanged. Every method throws Error (kConfig) with the name of the field.
class JsonFields {
 public:
  /// `what`: names the object in messages, such as "the port's settings".
  JsonFields(std::string_view json, std::string what);
  JsonFields(Json object, std::string what);

  void Read(const char* name, std::string* value);
  void Read(const char* name, bool* value);
  void Read(const char* name, double* value);
  void Read(const char* name, std::int64_t* value);
  void Read(const char* name, std::vector<std::int64_t>* value);
  void Read(const char* name, std::set<std::string>* value);
  void Read(const char* name, std::map<std::string, std::string>* value);
  void Read(const char* name, std::optional<std::string>* value);
  void Read(const char* name, std::optional<double>* value);
  std::optional<JsonFields> Object(const char* name);
  /// Throws if the object has fields that were not read.
  void Finish() const;

 private:
  const Json* Find(const char* name);

  Json object_;
  std::string what_;
  std::set<std::string> known_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_SETTINGS_JSON_FIELDS_H_
