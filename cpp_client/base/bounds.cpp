#include "base/bounds.h"

#include <cmath>
#include <string>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

std::string TextOf(double bound) {
  return bound == std::floor(bound) ? std::to_string(static_cast<std::int64_t>(bound))
                                    : ReprFloat(bound);
}

void Check(const char* name, double value, const std::string& text, const Bounds& bounds) {
  if (std::isfinite(value) && value >= bounds.least && value <= bounds.most) return;
  if (bounds.or_zero && value == 0) return;
  std::string expected;
  if (bounds.or_zero) {
    expected =
        "0 (no bound) or " +
        (bounds.most == kUnbounded ? "more" : TextOf(bounds.least) + " to " + TextOf(bounds.most));
  } else if (value > bounds.most) {
    expected = "at most " + TextOf(bounds.most);
  } else {
    expected = "at least " + TextOf(bounds.least);
  }
  throw Error(ErrorKind::kConfig, std::string(name) + ": got " + text + ", expected " + expected);
}

}  // namespace

void CheckBounds(const char* name, std::int64_t value, const Bounds& bounds) {
  Check(name, static_cast<double>(value), std::to_string(value), bounds);
}

void CheckBounds(const char* name, double value, const Bounds& bounds) {
  Check(name, value, ReprFloat(value), bounds);
}

}  // namespace recsys
