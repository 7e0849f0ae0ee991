#include "config/machine.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <thread>

namespace recsys {
namespace {

// Files and sockets beside clients' connections: artifacts, logs, the ports themselves.
constexpr std::int64_t kOtherFiles = 256;
constexpr int kMaxCpus = 1 << 16;

std::int64_t WantedFiles(const ServerSettings& settings) {
  return settings.connections.max_connections * NumPorts(settings) + kOtherFiles;
}

struct FreeCpus {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};

}  // namespace

std::vector<std::int64_t> OwnCpus() {
  std::vector<std::int64_t> cpus;
  const std::unique_ptr<cpu_set_t, FreeCpus> set(CPU_ALLOC(kMaxCpus));
  const std::size_t size = CPU_ALLOC_SIZE(kMaxCpus);
  if (set == nullptr) return cpus;
  CPU_ZERO_S(size, set.get());
  if (sched_getaffinity(0, size, set.get()) == 0) {
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, set.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  const std::int64_t num_cpus = std::max(1U, std::thread::hardware_concurrency());
  for (std::int64_t cpu = 0; cpu < num_cpus; ++cpu) cpus.push_back(cpu);
  return cpus;
}

std::int64_t NumPorts(const ServerSettings& settings) { return settings.http_port ? 2 : 1; }

void AllowOpenFiles(const ServerSettings& settings) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(WantedFiles(settings));
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? wanted : std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::int64_t MissingOpenFiles(const ServerSettings& settings) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return 0;
  const auto wanted = static_cast<rlim_t>(WantedFiles(settings));
  return wanted > limit.rlim_max ? static_cast<std::int64_t>(wanted - limit.rlim_max) : 0;
}

std::string OpenFilesWarning(const ServerSettings& settings) {
  const std::int64_t missing = MissingOpenFiles(settings);
  if (missing == 0) return "";
  return "max_connections is " + std::to_string(settings.connections.max_connections) +
         " on each of " + std::to_string(NumPorts(settings)) + " ports, " +
         std::to_string(missing) + " more in all than this process may have files for";
}

bool IsLoopback(const std::string& host) {
  in_addr four{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  in6_addr six{};
  // A scope, as in ::1%lo, is none of inet_pton's.
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &six) == 1) {
    return IN6_IS_ADDR_LOOPBACK(&six);
  }
  return host == "localhost";
}

}  // namespace recsys
