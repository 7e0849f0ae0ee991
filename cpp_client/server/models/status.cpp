#include "server/models/status.h"

namespace recsys {

const char* NameOf(ModelState state) {
  switch (state) {
    case ModelState::kAvailable:
      return "available";
    case ModelState::kLoading:
      return "loading";
    case ModelState::kReady:
      return "ready";
    case ModelState::kDraining:
      return "draining";
    case ModelState::kFailed:
      return "failed";
  }
  return "failed";
}

}  // namespace recsys
