#include "port/limits.h"

namespace recsys {

void ConnectionLimits::Check() const {
  ForEach(*this, [](const char* name, auto value, const Bounds& bounds) {
    CheckBounds(name, value, bounds);
  });
}

}  // namespace recsys
