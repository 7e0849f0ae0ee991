#include "server/rpc/endpoint.h"

#include <chrono>
#include <cmath>

#include "base/clock.h"

namespace recsys {
namespace {

constexpr int kMaxWaiting = 256;

}  // namespace

void OpenCalls::End() {
  if (count_.fetch_sub(1) != 1 || !is_awaited_.load()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  none_.notify_all();
}

bool OpenCalls::WaitUntilNone(double until_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  is_awaited_.store(true);
  const auto is_none = [this] { return count_.load() == 0; };
  // What waits for very long waits in pieces: clocks of the library overflow.
  constexpr double kPieceS = 3600;
  while (!is_none()) {
    const double left_s = until_s - MonotonicSeconds();
    if (!(left_s > 0)) return false;
    none_.wait_for(lock, std::chrono::duration<double>(std::fmin(left_s, kPieceS)), is_none);
  }
  return true;
}

bool Endpoint::TakesMore() {
  if (num_waiting >= kMaxWaiting) return false;
  ++num_waiting;
  return true;
}

Status Guarded(const std::function<void()>& run) {
  try {
    run();
  } catch (...) {
    return StatusOfCurrentException();
  }
  return {};
}

Status Authorized(const PortState& port, const Call& call) {
  if (!port.authorize) return {};
  Status status;
  const Status fault = Guarded([&] { status = port.authorize(call); });
  return fault.ok() ? status : fault;
}

}  // namespace recsys
