#ifndef RECSYS_BENCH_SETTINGS_H_
#define RECSYS_BENCH_SETTINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/latencies.h"
#include "bench/requests.h"
#include "recsys/client.h"

namespace recsys::bench {

enum class Mode { kClosed, kOpen, kFindRate };

/// One run, as the command line asks for it.
struct Settings {
  Mode mode = Mode::kClosed;
  std::string address;
  /// A server, or a file, that says what the model takes; empty for the address itself.
  std::string describe;
  std::optional<ClientTls> tls;
  Shape shape;
  /// Of a closed loop; 0 for an open one.
  int num_in_flight = 0;
  int max_in_flight = 10'000;
  double rate_per_s = 0;
  int num_connections = 0;
  int num_threads = 1;
  double duration_s = 10;
  double warm_up_s = 1;
  double timeout_s = 30;
  std::uint32_t seed = 0;
  double p99_ms = 0;
  /// Where a search begins; 0 lets a closed loop suggest it.
  double first_per_s = 0;
  double precision = 0.05;
  bool as_json = false;
  double expect_p99_ms = 0;
  double expect_per_s = 0;

  /// With recsys-bench's names, without what only this machine knows (paths).
  Json ToJson() const;
};

/// None where --help was asked for. Throws Error (kConfig): an option is out of its range, or does
/// not go with another.
std::optional<Settings> ReadSettings(const std::vector<std::string>& words);

std::string HelpText();

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_SETTINGS_H_
