#include "bench/peers/until_stopped.h"

#include <csignal>
#include <cstdio>

namespace recsys::peers {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

}  // namespace

void HoldSignals() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

void UntilStopped(int port) {
  std::printf("{\"port\": %d}\n", port);
  std::fflush(stdout);
  const sigset_t signals = StopSignals();
  int received = 0;
  sigwait(&signals, &received);
}

}  // namespace recsys::peers
