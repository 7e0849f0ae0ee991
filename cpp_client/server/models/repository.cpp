#include "server/models/repository.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/utf8.h"
#include "recsys/error.h"
#include "server/models/routing.h"

namespace recsys {
namespace {

constexpr char kDeltas[] = "deltas";
constexpr char kManifest[] = "manifest.json";
constexpr std::string_view kFileSuffix = ".pt";
constexpr std::size_t kMaxNameChars = 128;
// What fits an int64.
constexpr std::size_t kMaxVersionDigits = 18;
constexpr std::size_t kMaxToldChars = 64;

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// What models, versions and files may be called: a plain file name everywhere, safe in logs and
// metrics.
bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameChars && IsLetterOrDigit(text[0]) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return IsLetterOrDigit(c) || c == '.' || c == '-'; });
}

// No leading zeros, so that a version has one name.
bool IsVersion(std::string_view text) {
  return !text.empty() && text.size() <= kMaxVersionDigits && text[0] != '0' &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

// As Python's PurePath.suffix: a name that only begins with a dot has none.
bool IsSingleFile(std::string_view name) {
  return name.size() > kFileSuffix.size() && EndsWith(name, kFileSuffix);
}

bool IsWhole(const std::string& path) {
  if (IsSingleFile(path)) return IsFile(path);
  return IsFolder(path) && IsFile(path + "/" + kManifest);
}

std::string Told(std::string_view text) { return Repr(FirstChars(text, kMaxToldChars)); }

[[noreturn]] void RefuseModel(const std::string& text) {
  throw Error(ErrorKind::kModelNotFound, text);
}

void CheckFileName(const std::string& file_name) {
  if (IsName(file_name)) return;
  throw Error(ErrorKind::kRequest,
              "delta: got " + Told(file_name) + ", expected the name of a file, without folders");
}

[[noreturn]] void RefuseDelta(const std::string& file_name) {
  RefuseModel("delta: got " + Repr(file_name) + ", expected a file in the model's folder 'deltas'");
}

}  // namespace

Repository::Repository(std::string root, const std::vector<std::string>& models)
    : root_(std::move(root)), models_(models.begin(), models.end()) {}

std::vector<std::string> Repository::Names() {
  std::vector<std::string> found;
  for (const std::string& name : ListFolder(root_)) {
    if (name[0] == '.' || (!models_.empty() && models_.count(name) == 0)) continue;
    const std::string path = root_ + "/" + name;
    if (!IsName(name)) {
      Tell("repository: " + Told(name) +
           " is passed over: a model's name has letters, digits and _ - .");
    } else if (IsInside(path, name) && IsFolder(path)) {
      found.push_back(name);
    }
  }
  return found;
}

std::vector<std::string> Repository::Versions(const std::string& name) {
  const std::string folder = root_ + "/" + name;
  if (!IsName(name) || !IsInside(folder, name) || !IsFolder(folder)) return {};
  std::set<std::string, OldestFirst> found;
  for (const std::string& entry : ListFolder(folder)) {
    if (entry == kDeltas || entry[0] == '.') continue;
    const bool is_file = EndsWith(entry, kFileSuffix);
    const std::string version = entry.substr(0, entry.size() - (is_file ? kFileSuffix.size() : 0));
    const std::string path = folder + "/" + entry;
    if (!IsVersion(version)) {
      Tell("repository: " + name + "/" + Told(entry) +
           " is passed over: versions are whole numbers from 1");
    } else if (IsInside(path, name + "/" + entry) && IsWhole(path)) {
      found.insert(version);
    }
  }
  return {found.begin(), found.end()};
}

std::string Repository::Path(const std::string& name, const std::string& version) {
  if (IsName(name) && IsVersion(version)) {
    for (const std::string& entry : {version, version + std::string(kFileSuffix)}) {
      const std::string path = root_ + "/" + name + "/" + entry;
      if (IsWhole(path) && IsInside(path, name + "/" + entry)) return path;
    }
  }
  RefuseModel("version: got " + Told(version) + " of model " + Told(name) +
              ", expected one that lies in the repository");
}

std::string Repository::DeltaPath(const std::string& name, const std::string& file_name) {
  if (!IsName(name)) {
    RefuseModel("model: got " + Told(name) + ", expected one that lies in the repository");
  }
  CheckFileName(file_name);
  const std::string part = name + "/" + kDeltas + "/" + file_name;
  std::string path = root_ + "/" + part;
  if (!IsInside(path, part) || !IsFile(path)) RefuseDelta(file_name);
  return path;
}

bool Repository::IsInside(const std::string& path, const std::string& what) {
  if (IsWithin(Resolved(path), Resolved(root_))) return true;
  Tell("repository: " + what + " is passed over: it leads out of the repository");
  return false;
}

void Repository::Tell(const std::string& text) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!told_.insert(text).second) return;
  }
  Log(LogLevel::kWarning, text);
}

SingleArtifact::SingleArtifact(std::string path, std::string name, std::string version)
    : path_(std::move(path)), name_(std::move(name)), version_(std::move(version)) {}

std::vector<std::string> SingleArtifact::Names() { return {name_}; }

std::vector<std::string> SingleArtifact::Versions(const std::string& name) {
  if (name != name_) return {};
  return {version_};
}

std::string SingleArtifact::Path(const std::string& name, const std::string& version) {
  if (name != name_ || version != version_) {
    RefuseModel("version: got " + Told(version) + " of model " + Told(name) + ", expected " +
                Repr(version_) + " of " + Repr(name_));
  }
  return path_;
}

std::string SingleArtifact::DeltaPath(const std::string& name, const std::string& file_name) {
  if (name != name_) RefuseModel("model: got " + Told(name) + ", expected " + Repr(name_));
  CheckFileName(file_name);
  const std::string folder = path_ + "." + kDeltas;
  std::string path = folder + "/" + file_name;
  const std::string resolved = Resolved(path);
  if (resolved.substr(0, resolved.rfind('/')) != Resolved(folder) || !IsFile(path)) {
    RefuseDelta(file_name);
  }
  return path;
}

}  // namespace recsys
