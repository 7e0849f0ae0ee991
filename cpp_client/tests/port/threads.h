#ifndef RECSYS_TESTS_PORT_THREADS_H_
#define RECSYS_TESTS_PORT_THREADS_H_

#include <cstdlib>

#include "port/polling/balance.h"

namespace recsys {

/// How many polling threads the ports of tests have: the tests of this room and those of the engine
/// run with 1, 2 and 3 (cmake/RecsysTests.cmake).
inline int TestThreads() {
  const char* const text = std::getenv("RECSYS_TEST_POLLING_THREADS");
  return text == nullptr ? 1 : std::atoi(text);
}

/// Connections are spread over the threads at once, and all move to the first one after a moment,
/// while calls are open.
inline http2::BalanceLimits RestlessBalance() {
  http2::BalanceLimits limits;
  limits.window_s = 1e-3;
  limits.take_below = 0;
  limits.join_below = 1e3;
  limits.join_after_s = 0;
  return limits;
}

}  // namespace recsys

#endif  // RECSYS_TESTS_PORT_THREADS_H_
