// ReadFile of given.h.

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "base/text.h"
#include "config/disk.h"
#include "config/given.h"
#include "recsys/error.h"

namespace recsys {
namespace {

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

/// One file, and what its tables may hold.
class TableReader {
 public:
  TableReader(std::string file, const std::vector<Section>& known, Values* values)
      : file_(std::move(file)), values_(values) {
    for (const Section& section : known) {
      for (const Option& option : section.options) options_.emplace_back(&option);
      for (std::size_t size = 0; size <= section.path.size(); ++size) {
        tables_.emplace(section.path.begin(),
                        section.path.begin() + static_cast<std::ptrdiff_t>(size));
      }
    }
  }

  void Read(const SettingPath& path, const Toml& data) {
    if (data.kind != Toml::Kind::kTable) {
      Refuse(file_ + ": " + KeyOf(path) + ": got " + Cut(data.Str()) + ", expected a table");
    }
    for (const auto& [name, value] : data.table) {
      SettingPath at = path;
      at.push_back(name);
      if (tables_.count(at) > 0) {
        Read(at, value);
      } else if (const Option* option = Find(at)) {
        values_->Set(at, {Checked(*option, value), file_});
      } else {
        RefuseUnknown(at);
      }
    }
  }

 private:
  const Option* Find(const SettingPath& path) const {
    for (const Option* option : options_) {
      if (option->path == path) return option;
    }
    return nullptr;
  }

  Value Checked(const Option& option, const Toml& value) const {
    Value checked;
    try {
      checked = option.FromFile(value);
    } catch (const Error& error) {
      Refuse(file_ + ": " + option.key() + ": " + error.what());
    }
    if (option.kind == Kind::kPath && std::holds_alternative<std::string>(checked)) {
      return BesideFile(file_, std::get<std::string>(checked));
    }
    return checked;
  }

  [[noreturn]] void RefuseUnknown(const SettingPath& path) const {
    std::set<std::string> names;
    std::string elsewhere;
    for (const Option* option : options_) {
      if (AreBeside(option->path, path)) names.insert(option->path.back());
      if (option->path.back() == path.back()) {
        elsewhere += (elsewhere.empty() ? "" : " or ") + option->key();
      }
    }
    for (const SettingPath& table : tables_) {
      if (!table.empty() && AreBeside(table, path)) names.insert(table.back());
    }
    std::string hint = NearMisses(path.back(), {names.begin(), names.end()});
    if (hint.empty() && !elsewhere.empty()) hint = "; did you mean " + elsewhere + "?";
    std::string expected;
    for (const std::string& name : names) expected += (expected.empty() ? "" : ", ") + name;
    Refuse(file_ + ": " + KeyOf(path) + ": unknown key, expected one of " + expected + hint);
  }

  static bool AreBeside(const SettingPath& a, const SettingPath& b) {
    return SettingPath(a.begin(), a.end() - 1) == SettingPath(b.begin(), b.end() - 1);
  }

  /// A path of the file's, which is relative to its folder.
  static std::string BesideFile(const std::string& file, const std::string& path) {
    if (path.front() == '/') return path;
    return CleanPath(FolderOf(file) + "/" + path);
  }

  std::string file_;
  Values* values_;
  std::vector<const Option*> options_;
  std::set<SettingPath> tables_;
};

Toml ReadToml(const std::string& path) {
  std::string text;
  try {
    text = ReadWholeFile(path);
  } catch (const std::system_error& error) {
    Refuse(path + ": cannot read it: " + std::strerror(error.code().value()));
  }
  try {
    return ParseToml(text);
  } catch (const Error& error) {
    Refuse(path + ": not readable as TOML: " + error.what());
  }
}

}  // namespace

void ReadFile(const std::string& path, Values* values) {
  Toml data = ReadToml(path);
  Toml models;
  if (const auto found = data.table.find(kModelsTable); found != data.table.end()) {
    models = std::move(found->second);
    data.table.erase(found);
  }
  TableReader(path, Sections(), values).Read({}, data);
  if (models.kind != Toml::Kind::kTable) {
    Refuse(path + ": " + kModelsTable + ": got " + Cut(models.Str()) + ", expected tables [" +
           kModelsTable + ".NAME]");
  }
  for (const auto& [name, table] : models.table) {
    const std::vector<Section> known = ModelSections(name);
    TableReader(path, known, values).Read({kModelsTable, name}, table);
    values->Set({kModelsTable, name}, {{}, path});  // An empty table names a model too.
  }
}

}  // namespace recsys
