#include "engine/core/executor/this_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::size_t kMaxThreadName = 15;

struct FreeCpus {
  void operator()(cpu_set_t* cpus) const { CPU_FREE(cpus); }
};

}  // namespace

void NameThread(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, kMaxThreadName).c_str());
}

void StayOn(const std::vector<std::int64_t>& cpus) {
  constexpr std::int64_t kMost = 1 << 20;
  const std::int64_t largest =
      std::clamp<std::int64_t>(*std::max_element(cpus.begin(), cpus.end()), 0, kMost - 1);
  const std::unique_ptr<cpu_set_t, FreeCpus> set(CPU_ALLOC(static_cast<std::size_t>(largest + 1)));
  if (set == nullptr) throw std::bad_alloc();
  const std::size_t num_bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(largest + 1));
  CPU_ZERO_S(num_bytes, set.get());
  for (const std::int64_t cpu : cpus) {
    if (cpu >= 0 && cpu <= largest) CPU_SET_S(static_cast<std::size_t>(cpu), num_bytes, set.get());
  }
  if (sched_setaffinity(0, num_bytes, set.get()) != 0) {
    const int number = errno;
    throw Error(ErrorKind::kExecution,
                "[Errno " + std::to_string(number) + "] " + std::strerror(number));
  }
}

std::int64_t NumPreempted() {
  rusage used{};
  return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nivcsw : 0;
}

}  // namespace recsys
