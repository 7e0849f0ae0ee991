#include "config/option.h"

#include <algorithm>

#include "base/text.h"
#include "base/utf8.h"
#include "config/value_text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxChars = 80;
constexpr char kNone[] = "none";
constexpr char kModels[] = "models";

struct OptionRow {
  const char* name;
  Kind kind;
  bool is_optional;
  const char* default_text;
  const char* flag;
  const char* environment;
  const char* about;
};

struct SectionRow {
  const char* key;
  const char* about;
  bool is_optional;
  std::vector<OptionRow> options;
};

SettingPath PathOf(std::string_view key) {
  SettingPath path;
  while (!key.empty()) {
    const std::size_t end = std::min(key.find('.'), key.size());
    path.emplace_back(key.substr(0, end));
    key.remove_prefix(std::min(end + 1, key.size()));
  }
  return path;
}

Section SectionOf(const SectionRow& row) {
  Section section{PathOf(row.key), row.about, row.is_optional, {}};
  for (const OptionRow& one : row.options) {
    Option option;
    option.path = section.path;
    option.path.emplace_back(one.name);
    option.kind = one.kind;
    option.is_optional = one.is_optional;
    if (one.default_text != nullptr) option.default_text = one.default_text;
    option.flag = one.flag;
    option.environment = one.environment;
    option.about = one.about;
    section.options.push_back(std::move(option));
  }
  return section;
}

std::vector<Section> MadeSections() {
  const std::vector<SectionRow> rows = {
#include "config/options_table.inc"
  };
  std::vector<Section> sections;
  for (const SectionRow& row : rows) sections.push_back(SectionOf(row));
  return sections;
}

/// Of a path below `defaults` that below one model's table.
SettingPath OfModel(const SettingPath& path, const std::string& model) {
  SettingPath made{kModels, model};
  made.insert(made.end(), path.begin() + 1, path.end());
  return made;
}

template <typename T>
std::vector<T> Items(const std::vector<Toml>& items, T Toml::*member) {
  std::vector<T> values;
  for (const Toml& item : items) values.push_back(item.*member);
  return values;
}

bool AreAll(const std::vector<Toml>& items, Toml::Kind kind) {
  return std::all_of(items.begin(), items.end(),
                     [kind](const Toml& item) { return item.kind == kind; });
}

/// A file's text is read as a flag's where the setting's values are texts of some kind.
bool TakesText(const Option& option) {
  return option.kind == Kind::kText || option.kind == Kind::kPath ||
         option.kind == Kind::kNumbers || option.is_size();
}

/// None where the value is of the wrong type.
std::optional<Value> FromToml(const Option& option, const Toml& value) {
  switch (value.kind) {
    case Toml::Kind::kText:
      if (TakesText(option)) return option.FromText(value.text);
      break;
    case Toml::Kind::kYesNo:
      if (option.kind == Kind::kYesNo) return value.yes;
      break;
    case Toml::Kind::kWhole:
      if (option.kind == Kind::kWhole) return value.whole;
      if (option.kind == Kind::kNumber) return static_cast<double>(value.whole);
      break;
    case Toml::Kind::kNumber:
      if (option.kind == Kind::kNumber) return value.number;
      break;
    case Toml::Kind::kArray:
      if (option.kind == Kind::kNumbers && AreAll(value.items, Toml::Kind::kWhole)) {
        return Items(value.items, &Toml::whole);
      }
      if (option.kind == Kind::kTexts && AreAll(value.items, Toml::Kind::kText)) {
        return Items(value.items, &Toml::text);
      }
      break;
    case Toml::Kind::kOther:
    case Toml::Kind::kTable:
      break;
  }
  return std::nullopt;
}

[[noreturn]] void Refuse(const Option& option, const std::string& got) {
  throw Error(ErrorKind::kConfig, "got " + Cut(got) + ", expected " + option.Expected());
}

}  // namespace

std::string Option::key() const { return KeyOf(path); }

bool Option::is_size() const {
  constexpr std::string_view kEnd = "_bytes";
  const std::string& name = path.back();
  return kind == Kind::kWhole && name.size() >= kEnd.size() &&
         name.compare(name.size() - kEnd.size(), kEnd.size(), kEnd) == 0;
}

Value Option::FromText(const std::string& text) const {
  if (is_optional && LowerCase(text) == kNone) return std::monostate();
  std::optional<Value> value;
  switch (kind) {
    case Kind::kYesNo:
      value = ReadYesNo(text);
      break;
    case Kind::kWhole:
      value = is_size() ? ReadSize(text) : ReadWhole(text);
      break;
    case Kind::kNumber:
      value = ReadNumber(text);
      break;
    case Kind::kNumbers:
      value = ReadNumbers(text);
      break;
    case Kind::kTexts:
      value = ReadTexts(text);
      break;
    case Kind::kPath:
      if (!text.empty()) value = CleanPath(text);
      break;
    case Kind::kText:
      value = text;
      break;
  }
  if (!value) Refuse(*this, text);
  return *value;
}

Value Option::FromFile(const Toml& value) const {
  if (is_optional && value.kind == Toml::Kind::kText && value.text == kNone)
    return std::monostate();
  const std::optional<Value> found = FromToml(*this, value);
  if (!found || std::holds_alternative<std::monostate>(*found)) Refuse(*this, value.Str());
  return *found;
}

std::string Option::Expected() const {
  std::string words;
  switch (kind) {
    case Kind::kYesNo:
      words = "true or false";
      break;
    case Kind::kWhole:
      words = is_size() ? "a size such as 4194304 or 4MiB" : "a whole number";
      break;
    case Kind::kNumber:
      words = "a number";
      break;
    case Kind::kText:
      words = "a text";
      break;
    case Kind::kPath:
      words = "a path";
      break;
    case Kind::kNumbers:
      words = "numbers such as 0-3,5";
      break;
    case Kind::kTexts:
      words = "names with commas between";
      break;
  }
  return is_optional ? words + " or " + kNone : words;
}

const std::vector<Section>& Sections() {
  static const std::vector<Section> sections = MadeSections();
  return sections;
}

std::vector<Section> ModelSections(const std::string& model) {
  std::vector<Section> made;
  for (Section section : Sections()) {
    if (section.path.empty() || section.path.front() != "defaults") continue;
    section.path = OfModel(section.path, model);
    for (Option& option : section.options) option.path = OfModel(option.path, model);
    made.push_back(std::move(section));
  }
  return made;
}

bool IsPositional(const Option& option) { return option.flag.rfind("--", 0) != 0; }

std::string KeyOf(const SettingPath& path) {
  std::string key;
  for (const std::string& name : path) {
    if (&name != &path.front()) key += '.';
    key += name;
  }
  return key;
}

std::string CleanPath(std::string_view text) {
  // Two slashes at the beginning are kept, as POSIX has it; three are one.
  const bool is_double = text.substr(0, 2) == "//" && text.substr(0, 3) != "///";
  const std::string root = is_double ? "//" : text.substr(0, 1) == "/" ? "/" : "";
  std::string clean;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('/', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    if (!part.empty() && part != ".") {
      if (!clean.empty()) clean += '/';
      clean += part;
    }
    at = end + 1;
  }
  return root.empty() && clean.empty() ? "." : root + clean;
}

std::string Cut(std::string_view text) { return Repr(FirstChars(text, kMaxChars)); }

}  // namespace recsys
