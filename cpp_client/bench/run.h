#ifndef RECSYS_BENCH_RUN_H_
#define RECSYS_BENCH_RUN_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/load.h"
#include "bench/search.h"
#include "bench/settings.h"

namespace recsys::bench {

/// What a run came to.
struct Result {
  /// One step of a search.
  struct Tried {
    Verdict verdict;
    Figures figures;
  };

  Settings settings;
  Json server;
  std::string started_at;
  Json machine;
  /// The only one; of a search the last one at the rate that it found, or none if it found none.
  std::optional<Figures> measurement;
  std::optional<Found> found;
  std::vector<Tried> steps;
  std::size_t num_distinct = 0;

  Json ToJson() const;
  /// What a reader should know.
  std::vector<std::string> Warnings() const;
  /// What was expected and did not come, one text each.
  std::vector<std::string> Missed() const;
  int ExitCode() const;
};

/// Is told what is measured next and how many seconds that takes; gives who is told of its
/// progress.
using Begin = std::function<Progress(const std::string&, double)>;

/// Measures. Throws ClientError (nothing was measured) and Error (kConfig: bad usage).
Result Run(const Settings& settings, const Begin& begin);

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_RUN_H_
