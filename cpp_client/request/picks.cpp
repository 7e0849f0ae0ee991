#include "request/picks.h"

#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

std::string ListedViews(const std::vector<std::string_view>& names) {
  return Listed({names.begin(), names.end()});
}

}  // namespace

void ThrowWrongNames(const char* kind, const std::vector<std::string_view>& got,
                     const std::vector<std::string_view>& expected) {
  const std::string at(kind);
  const std::unordered_set<std::string_view> known(expected.begin(), expected.end());
  std::unordered_map<std::string_view, int> times;
  for (const std::string_view name : got) {
    if (known.count(name) == 0) {
      throw Error(ErrorKind::kRequest, at + ": got an unknown input " + Short(name) +
                                           ", expected " + ListedViews(expected));
    }
    ++times[name];
  }
  for (const std::string_view name : got) {
    if (times[name] > 1) {
      throw Error(ErrorKind::kRequest,
                  at + ": got " + Repr(name) + " more than once, expected each input once");
    }
  }
  std::vector<std::string_view> missing;
  for (const std::string_view name : expected) {
    if (times.count(name) == 0) missing.push_back(name);
  }
  throw Error(ErrorKind::kRequest, at + ": missing " + ListedViews(missing) +
                                       ", expected each of the model's inputs once");
}

}  // namespace recsys
