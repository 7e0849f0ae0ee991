#include "engine/settings/settings.h"

#include <algorithm>
#include <type_traits>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

/// Checks the numbers of settings, and the settings inside of them.
template <typename Settings>
void CheckFields(const Settings& settings) {
  Settings::ForEach(settings, [](const char* name, const auto& value, const Bounds& bounds) {
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, std::int64_t> || std::is_same_v<Value, double> ||
                  std::is_same_v<Value, std::optional<double>>) {
      CheckBounds(name, value, bounds);
    } else if constexpr (std::is_aggregate_v<Value>) {
      value.Check();
    }
  });
}

void CheckNotAboveQueue(const std::string& what, std::int64_t request, std::int64_t queue) {
  if (request <= queue) return;
  Refuse("max_request_" + what + ": got " + std::to_string(request) +
         ", expected at most max_queue_" + what + " (" + std::to_string(queue) +
         "), or such a request could never be taken in");
}

}  // namespace

void BatchLimits::Check() const {
  CheckFields(*this);
  CheckNotAboveQueue("rows", max_request_rows, max_queue_rows);
  CheckNotAboveQueue("ids", max_request_ids, max_queue_ids);
}

void VersionSettings::Check() const {
  CheckFields(*this);
  if (std::any_of(cpus.begin(), cpus.end(), [](std::int64_t cpu) { return cpu < 0; })) {
    std::string numbers;
    for (const std::int64_t cpu : cpus) {
      numbers += (numbers.empty() ? "" : ", ") + std::to_string(cpu);
    }
    Refuse("cpus: got [" + numbers + "], expected numbers of processors, from 0");
  }
  if (target && target->empty()) {
    Refuse("target: got an empty text, expected the name of a target such as cpu");
  }
}

void PortSettings::Check() const {
  if (host.empty()) Refuse("host: got an empty text, expected an address such as 127.0.0.1");
  CheckFields(*this);
}

void RingLimits::Check() const { CheckFields(*this); }

void EngineSettings::Check() const {
  if (ended != "none" && ended != "errors" && ended != "all") {
    Refuse("ended: got " + Repr(ended) + ", expected none, errors or all");
  }
  CheckFields(*this);
}

void RouteSpec::Check() const { CheckFields(*this); }

void SubmitOptions::Check() const { CheckFields(*this); }

}  // namespace recsys
