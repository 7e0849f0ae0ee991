#include "config/given.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// Whether a port of a service's name goes on like "_8500_TCP".
bool HasPortAndProtocol(std::string_view name) {
  constexpr std::string_view kPort = "_PORT_";
  for (std::size_t at = name.find(kPort); at != name.npos; at = name.find(kPort, at + 1)) {
    const std::string_view rest = name.substr(at + kPort.size());
    const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
    const std::string_view protocol = rest.substr(digits);
    if (digits > 0 && (StartsWith(protocol, "_TCP") || StartsWith(protocol, "_UDP") ||
                       StartsWith(protocol, "_SCTP"))) {
      return true;
    }
  }
  return false;
}

/// What Kubernetes puts into the environment of every container for a service that is called
/// recsys-serve, or begins so.
bool IsServiceLink(std::string_view name, std::string_view text) {
  // The underscore at the prefix's end may be the one that begins what Kubernetes adds.
  name.remove_prefix(std::string_view(kEnvironmentPrefix).size() - 1);
  if (name.find("_SERVICE_HOST") != name.npos || name.find("_SERVICE_PORT") != name.npos)
    return true;
  const bool is_address =
      StartsWith(text, "tcp://") || StartsWith(text, "udp://") || StartsWith(text, "sctp://");
  return HasPortAndProtocol(name) || (EndsWith(name, "_PORT") && is_address);
}

Given FromText(const Option& option, const std::string& origin, const std::string& text) {
  try {
    return {option.FromText(text), origin};
  } catch (const Error& error) {
    throw Error(ErrorKind::kConfig, origin + ": " + option.key() + ": " + error.what());
  }
}

const Option* FindOption(const std::function<bool(const Option&)>& is_it) {
  for (const Section& section : Sections()) {
    for (const Option& option : section.options) {
      if (is_it(option)) return &option;
    }
  }
  return nullptr;
}

std::vector<std::string> EnvironmentNames() {
  std::vector<std::string> names;
  for (const Section& section : Sections()) {
    for (const Option& option : section.options) names.push_back(option.environment);
  }
  return names;
}

}  // namespace

void Values::Set(const SettingPath& path, Given given) {
  const auto [place, is_new] = places_.emplace(path, all_.size());
  if (is_new) {
    all_.emplace_back(path, std::move(given));
  } else {
    all_[place->second].second = std::move(given);
  }
}

const Given* Values::Find(const SettingPath& path) const {
  const auto place = places_.find(path);
  return place == places_.end() ? nullptr : &all_[place->second].second;
}

const Given* Values::FirstBelow(const SettingPath& path) const {
  for (const auto& [at, given] : all_) {
    if (at.size() >= path.size() && std::equal(path.begin(), path.end(), at.begin())) return &given;
  }
  return nullptr;
}

void ReadEnvironment(const Texts& environment, Values* values) {
  for (const auto& [name, text] : environment) {
    if (!StartsWith(name, kEnvironmentPrefix) || name == kConfigEnvironment ||
        IsServiceLink(name, text)) {
      continue;
    }
    const std::string& wanted = name;
    const Option* option =
        FindOption([&wanted](const Option& one) { return one.environment == wanted; });
    if (option == nullptr) {
      throw Error(ErrorKind::kConfig,
                  name + ": unknown environment name" + NearMisses(name, EnvironmentNames()));
    }
    values->Set(option->path, FromText(*option, name, text));
  }
}

void ReadFlags(const Texts& flags, Values* values) {
  for (const auto& [key, text] : flags) {
    const std::string& wanted = key;
    const Option* option = FindOption([&wanted](const Option& one) { return one.key() == wanted; });
    if (option == nullptr) throw Error(ErrorKind::kInternal, "no setting is called " + key);
    values->Set(option->path, FromText(*option, option->flag, text));
  }
}

}  // namespace recsys
