#include "bench/environment.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>
#include <sched.h>
#include <sys/utsname.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>

namespace recsys::bench {
namespace {

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

int NumCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

}  // namespace

Json Tool() {
  return {{"recsys-cpp-bench", RECSYS_VERSION},
          {"grpc", grpc::Version()},
          {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)}};
}

Json Machine() {
  utsname system{};
  uname(&system);
  std::array<double, 3> loads{};
  Json load_average = Json::array();
  if (getloadavg(loads.data(), static_cast<int>(loads.size())) > 0) {
    for (const double load : loads) load_average.push_back(std::round(load * 100) / 100);
  }
  return {{"cpu", CpuName()},
          {"num_cores", NumCores()},
          {"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
          {"load_average", std::move(load_average)}};
}

Json Served(const ModelMetadata& metadata) {
  return {{"model", metadata.model},
          {"version", metadata.version},
          {"target", metadata.target},
          {"num_dense_inputs", metadata.signature.dense.size()},
          {"num_sparse_inputs", metadata.signature.sparse.size()},
          {"context", metadata.signature.context},
          {"torch", metadata.torch_version},
          {"fbgemm", metadata.fbgemm_version},
          {"digest", metadata.digest}};
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S+00:00", &utc);
  return text.data();
}

}  // namespace recsys::bench
