#include "server/models/route_table.h"

#include "base/text.h"
#include "base/utf8.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxToldChars = 64;

[[noreturn]] void RefuseVersion(const RouteTable& table, std::string_view version) {
  if (table.loading.count(std::string(version)) > 0) {
    throw Error(ErrorKind::kNotReady, "version " + Repr(version) + " of model " +
                                          Repr(table.model) + " is being loaded; try again later");
  }
  throw Error(ErrorKind::kModelNotFound,
              "version: got " + Repr(FirstChars(version, kMaxToldChars)) + " of model " +
                  Repr(table.model) +
                  ", expected one that is loaded, or nothing for the one that serves");
}

[[noreturn]] void RefuseModel(const RouteTable& table) {
  if (table.is_unloaded) {
    throw Error(ErrorKind::kModelNotFound, "model: got " + Repr(table.model) +
                                               ", which was unloaded, expected one that is loaded");
  }
  throw Error(ErrorKind::kNotReady,
              "model " + Repr(table.model) + " has no version that is ready; try again later");
}

}  // namespace

Route RouteTable::Find(std::string_view version, double draw) const {
  if (!version.empty()) {
    const auto named = hosted.find(version);
    if (named == hosted.end()) RefuseVersion(*this, version);
    return {named->second, nullptr};
  }
  const Plan::Choice choice = plan.Pick(draw);
  const auto primary = hosted.find(choice.primary);
  if (primary == hosted.end()) RefuseModel(*this);
  return {primary->second, choice.has_shadow ? shadow : nullptr};
}

bool operator==(const RouteTable& a, const RouteTable& b) {
  return a.model == b.model && a.plan == b.plan && a.hosted == b.hosted && a.shadow == b.shadow &&
         a.loading == b.loading && a.is_unloaded == b.is_unloaded;
}

}  // namespace recsys
