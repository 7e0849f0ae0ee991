#include <absl/synchronization/mutex.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "bench/report.h"
#include "bench/run.h"
#include "bench/settings.h"

namespace {

int Main(const std::vector<std::string>& words) {
  using namespace recsys::bench;  // NOLINT
  const std::optional<Settings> settings = ReadSettings(words);
  if (!settings) {
    std::fputs(HelpText().c_str(), stdout);
    return 0;
  }
  std::optional<Result> result;
  {
    Display display(settings->mode == Mode::kFindRate);
    result = Run(*settings, [&](const std::string& what, double length_s) {
      return display.Start(what, length_s);
    });
  }
  std::puts(settings->as_json ? result->ToJson().dump().c_str() : Report(*result).c_str());
  const int code = result->ExitCode();
  if (code == 3) {
    for (const std::string& text : result->Missed()) {
      std::fprintf(stderr, "recsys-cpp-bench: %s\n", text.c_str());
    }
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  // Debian's gRPC looks for deadlocks in itself whenever it takes a lock: a twentieth of what a
  // request costs.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // gRPC writes no lines of its own unless asked.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  try {
    return Main(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const recsys::Error& error) {
    std::fprintf(stderr, "recsys-cpp-bench: %s\n", error.what());
    return error.kind() == recsys::ErrorKind::kConfig ? 2 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "recsys-cpp-bench: %s\n", error.what());
    return 1;
  }
}
