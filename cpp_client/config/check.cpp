#include "config/check.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <system_error>

#include "base/text.h"
#include "config/disk.h"
#include "config/findings.h"
#include "config/machine.h"
#include "config/tls_files.h"
#include "config/token_file.h"
#include "recsys/error.h"

namespace recsys {
namespace {

using Numbers = std::vector<std::int64_t>;

bool IsKind(const std::string& path, mode_t kind) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && (found.st_mode & S_IFMT) == kind;
}

std::string Listing(const Numbers& values) {
  std::string text;
  for (const std::int64_t value : values) {
    text += (text.empty() ? "" : ", ") + std::to_string(value);
  }
  return "[" + text + "]";
}

void CheckPorts(const ServerSettings& settings, Findings* findings) {
  std::vector<std::pair<std::string, std::int64_t>> ports = {
      {"port", settings.port},
      {"metrics_port", settings.metrics_port.value_or(0)},
      {"http_port", settings.http_port.value_or(0)},
      {"admin.port", settings.admin ? settings.admin->port : 0}};
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const std::int64_t port = ports[i].second;
    std::string keys = ports[i].first;
    std::size_t num_keys = 1;
    for (std::size_t k = i + 1; k < ports.size() && port != 0; ++k) {
      if (ports[k].second != port) continue;
      keys += " and " + ports[k].first;
      ++num_keys;
      ports[k].second = 0;
    }
    if (num_keys > 1) {
      findings->Error(keys + ": got " + std::to_string(port) +
                      " for each, expected ports that differ");
    }
  }
}

void CheckSecurity(const ServerSettings& settings, Findings* findings) {
  if (settings.tls) {
    findings->Try([&] { ReadTls(*settings.tls); });
  }
  if (settings.admin) {
    findings->Try([&] { ReadToken(settings.admin->token_file); });
  }
  if (settings.tls) return;
  if (!IsLoopback(settings.host)) {
    findings->Warning("host: " + settings.host + " is open to the network without TLS");
  }
  if (settings.admin && !IsLoopback(settings.admin->host)) {
    findings->Warning("admin.host: the token crosses the network to " + settings.admin->host +
                      " without TLS");
  }
}

/// The defaults, and the models for which `field` is something else; each with the setting's key.
template <typename T>
std::vector<std::pair<std::string, T>> OfTheirOwn(const ServerSettings& settings, const char* name,
                                                  T ModelSettings::*field) {
  std::vector<std::pair<std::string, T>> found = {
      {std::string("defaults.") + name, settings.defaults.*field}};
  for (const auto& [model, own] : settings.models) {
    if (own.*field == settings.defaults.*field) continue;
    found.emplace_back("models." + model + "." + name, own.*field);
  }
  return found;
}

void CheckWarmUps(const ServerSettings& settings, const ModelsThere& models, Findings* findings) {
  for (const auto& [key, path] : OfTheirOwn(settings, "warm_up", &ModelSettings::warm_up)) {
    if (!path) continue;
    if (!IsKind(*path, S_IFREG) || access(path->c_str(), R_OK) != 0) {
      findings->Error(key + ": got " + Repr(*path) + ", expected a file that can be read");
    } else if (models.check_capture) {
      const std::string& file = *path;
      findings->Try([&models, &file] { models.check_capture(file); },
                    key + ": " + Repr(file) + ": ");
    }
  }
}

void CheckCapture(const ServerSettings& settings, Findings* findings) {
  if (!settings.capture) return;
  const std::string& path = settings.capture->path;
  const std::string folder = FolderOf(path);
  if (IsKind(path, S_IFDIR) || !IsKind(folder, S_IFDIR) || access(folder.c_str(), W_OK) != 0) {
    findings->Error("capture.path: got " + Repr(path) +
                    ", expected a file in a folder that can be written");
  }
}

void CheckCpus(const ServerSettings& settings, Findings* findings) {
  const Numbers there = OwnCpus();
  for (const auto& [key, cpus] : OfTheirOwn(settings, "cpus", &ModelSettings::cpus)) {
    Numbers sorted = cpus, missing;
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    std::set_difference(sorted.begin(), sorted.end(), there.begin(), there.end(),
                        std::back_inserter(missing));
    if (missing.empty()) continue;
    findings->Error(key + ": got " + Listing(missing) +
                    ", expected some of this process's own: " + Listing(there));
  }
}

void CheckOpenFiles(const ServerSettings& settings, Findings* findings) {
  const std::int64_t missing = MissingOpenFiles(settings);
  if (missing == 0) return;
  findings->Warning("connections.max_connections: got " +
                    std::to_string(settings.connections.max_connections) + " on each of " +
                    std::to_string(NumPorts(settings)) + " ports, " + std::to_string(missing) +
                    " more in all than this process may have open files for (ulimit -n)");
}

}  // namespace

std::string Unsupported(const ServerSettings& settings) {
  if (!settings.trace) return "";
  return "trace.endpoint: got " + Repr(settings.trace->endpoint) +
         ", expected none: the native server sends no traces; leave it out, or start the Python "
         "server";
}

std::vector<Finding> CheckSettings(const Settings& settings, const ModelsThere& models) {
  const ServerSettings& server = settings.server;
  Findings findings;
  if (const std::string text = Unsupported(server); !text.empty()) findings.Error(text);
  CheckSource(settings, models, &findings);
  CheckPorts(server, &findings);
  CheckSecurity(server, &findings);
  CheckWarmUps(server, models, &findings);
  CheckCapture(server, &findings);
  CheckCpus(server, &findings);
  CheckOpenFiles(server, &findings);
  return findings.all();
}

std::vector<std::string> CheckStart(const Settings& settings, const ModelsThere& models) {
  Findings findings;
  CheckNames(settings, models, &findings);
  CheckPorts(settings.server, &findings);
  CheckCapture(settings.server, &findings);
  CheckCpus(settings.server, &findings);
  std::vector<std::string> errors;
  for (const Finding& finding : findings.all()) {
    if (finding.is_error) errors.push_back(finding.text);
  }
  return errors;
}

}  // namespace recsys
