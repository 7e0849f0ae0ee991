#include "server/models/routing.h"

#include <algorithm>
#include <string_view>

namespace recsys {
namespace {

bool IsNumber(const std::string& version) {
  return !version.empty() && std::all_of(version.begin(), version.end(),
                                         [](char digit) { return digit >= '0' && digit <= '9'; });
}

// Numbers may be longer than any integer: a digest can happen to have no letters.
bool IsSmaller(std::string_view a, std::string_view b) {
  const auto significant = [](std::string_view number) {
    return number.substr(std::min(number.find_first_not_of('0'), number.size()));
  };
  a = significant(a);
  b = significant(b);
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

}  // namespace

bool IsOlder(const std::string& a, const std::string& b) {
  const bool a_is_number = IsNumber(a);
  const bool b_is_number = IsNumber(b);
  if (a_is_number != b_is_number) return b_is_number;
  return a_is_number ? IsSmaller(a, b) : a < b;
}

std::string Newest(const std::set<std::string>& versions) {
  const auto found = std::max_element(versions.begin(), versions.end(), IsOlder);
  return found == versions.end() ? "" : *found;
}

Plan::Choice Plan::Pick(double draw) const {
  const std::string& primary = draw < canary_share ? canary : serving;
  return {primary, draw >= 1 - shadow_share && shadow != primary};
}

bool operator==(const Plan& a, const Plan& b) {
  return a.serving == b.serving && a.canary == b.canary && a.canary_share == b.canary_share &&
         a.shadow == b.shadow && a.shadow_share == b.shadow_share;
}

Plan MakePlan(const Routing& routing, const std::set<std::string>& ready) {
  const auto if_ready = [&ready](const std::string& version) {
    return ready.count(version) > 0 ? version : std::string();
  };
  Plan plan;
  plan.canary = if_ready(routing.canary);
  plan.shadow = if_ready(routing.shadow);
  plan.canary_share = plan.canary.empty() ? 0 : routing.canary_percent / 100;
  plan.shadow_share = plan.shadow.empty() ? 0 : routing.shadow_percent / 100;
  if (routing.serve == kLatest) {
    std::set<std::string> others = ready;
    others.erase(routing.canary);
    others.erase(routing.shadow);
    plan.serving = others.empty() ? plan.canary : Newest(others);
  } else {
    plan.serving = if_ready(routing.serve);
  }
  return plan;
}

}  // namespace recsys
