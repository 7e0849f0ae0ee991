// What the check finds of models and their artifacts: findings.h.

#include <algorithm>
#include <cstring>
#include <map>
#include <system_error>

#include "base/text.h"
#include "config/findings.h"
#include "recsys/error.h"

namespace recsys {
namespace {

using Names = std::vector<std::string>;

constexpr std::size_t kMaxVersionsSaid = 5;

bool IsIn(const std::string& name, const Names& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string Newest(const Names& versions) {
  std::string text;
  const std::size_t first = versions.size() - std::min(versions.size(), kMaxVersionsSaid);
  for (std::size_t i = first; i < versions.size(); ++i) {
    text += (text.empty() ? "" : ", ") + versions[i];
  }
  return text;
}

void CheckRouting(const std::string& name, const Routing& routing, const Names& versions,
                  Findings* findings) {
  const std::pair<const char*, const std::string*> fields[] = {
      {"serve", &routing.serve}, {"canary", &routing.canary}, {"shadow", &routing.shadow}};
  for (const auto& [key, version] : fields) {
    if (version->empty() || *version == "latest" || IsIn(*version, versions)) continue;
    findings->Error(name + ": routing." + key + ": got " + Repr(*version) +
                    ", expected one of its versions: " + Newest(versions));
  }
}

/// The target and the parts are two things: one that is wrong does not hide the other.
void CheckParts(const std::string& what, const std::string& path, const std::string& target,
                const ModelsThere& models, Findings* findings) {
  bool is_target_wrong = false;
  if (!target.empty()) {
    try {
      models.check_artifact(path, target);
      return;
    } catch (const Error& error) {
      findings->Error(what + error.what());
      is_target_wrong = error.kind() == ErrorKind::kTarget;
    }
    if (!is_target_wrong) return;
  }
  try {
    models.check_artifact(path, "");
  } catch (const Error& error) {
    // Nobody has asked for a target of this machine's.
    if (error.kind() != ErrorKind::kTarget) findings->Error(what + error.what());
  }
}

void CheckModel(const std::string& name, const Names& versions, const ModelSettings& settings,
                const ModelsThere& models, Findings* findings) {
  if (versions.empty()) findings->Error(name + ": has no version, expected at least one");
  CheckRouting(name, settings.routing, versions, findings);
  for (const std::string& version : versions) {
    const std::string what = name + ", version " + version + ": ";
    std::string path;
    const auto read = [&] {
      path = models.path(name, version);
      models.check_manifest(path);
    };
    if (findings->Try(read, what)) {
      CheckParts(what, path, settings.target.value_or(""), models, findings);
    }
  }
}

}  // namespace

bool Findings::Try(const std::function<void()>& look, const std::string& before) {
  try {
    look();
    return true;
  } catch (const recsys::Error& error) {
    Error(before + error.what());
    return false;
  }
}

void CheckNames(const Settings& settings, const ModelsThere& models, Findings* findings) {
  const SourceSettings& source = settings.source;
  Names there;
  try {
    there = source.repository && !source.models.empty() ? models.all_names() : models.names();
  } catch (const std::system_error& error) {
    findings->Error("source.repository: cannot read " + Repr(source.repository.value_or("")) +
                    ": " + std::strerror(error.code().value()));
    return;
  }
  if (there.empty()) {
    findings->Error("source.repository: holds no model, expected at least one folder of versions");
  }
  for (const std::string& name : source.models) {
    if (IsIn(name, there)) continue;
    findings->Error("source.models: got " + Repr(name) + ", which is not there" +
                    NearMisses(name, there));
  }
}

void CheckSource(const Settings& settings, const ModelsThere& models, Findings* findings) {
  CheckNames(settings, models, findings);
  Names names;
  std::map<std::string, Names> versions;
  try {
    names = models.names();
    for (const std::string& name : names) versions[name] = models.versions(name);
  } catch (const std::system_error&) {
    return;  // Said above.
  }
  for (const auto& [name, own] : settings.server.models) {
    if (!IsIn(name, names)) {
      findings->Warning("models." + name + ": there is no such model" + NearMisses(name, names));
    }
  }
  for (const std::string& name : names) {
    CheckModel(name, versions[name], settings.server.SettingsOf(name), models, findings);
  }
}

}  // namespace recsys
