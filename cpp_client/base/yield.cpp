#include "base/yield.h"

#include <thread>

#include "base/clock.h"

namespace recsys {
namespace {

// Some page faults, or the checksum of 64 KiB.
constexpr double kTurnS = 50e-6;

}  // namespace

void YieldIfDue() {
  thread_local double last_s = 0;
  if (MonotonicSeconds() - last_s < kTurnS) return;
  std::this_thread::yield();
  last_s = MonotonicSeconds();
}

}  // namespace recsys
