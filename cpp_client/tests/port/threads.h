#ifndef RECSYS_TESTS_PORT_THREADS_H_
#define RECSYS_TESTS_PORT_THREADS_H_

#include <cstdlib>

namespace recsys {

/// How many polling threads the ports of tests have: the tests of this room and those of the engine
/// run with 1, 2 and 3 (cmake/RecsysTests.cmake).
inline int TestThreads() {
  const char* const text = std::getenv("RECSYS_TEST_POLLING_THREADS");
  return text == nullptr ? 1 : std::atoi(text);
}

}  // namespace recsys

#endif  // RECSYS_TESTS_PORT_THREADS_H_
