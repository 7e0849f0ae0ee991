#ifndef RECSYS_BENCH_LOAD_H_
#define RECSYS_BENCH_LOAD_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/figures.h"
#include "bench/lane.h"
#include "bench/settings.h"

namespace recsys::bench {

/// Is told how far a measurement is: seconds, answers, failures.
using Progress = std::function<void(double, std::int64_t, std::int64_t)>;

/// The lanes of a run. Belongs to one thread.
class Load {
 public:
  /// Makes the requests and connects. Throws ClientError where nobody answers.
  Load(const Settings& settings, const ModelMetadata& metadata);

  /// One measurement by all lanes. `step` says the load of all together; its start is set here.
  Figures Measure(Step step, const Progress& progress);

  std::size_t num_distinct() const { return requests_.size(); }

 private:
  Effort Watch(const Step& step, const Tally& tally, const Progress& progress) const;

  const int num_threads_;
  const std::vector<std::string> kinds_;
  std::vector<Prepared> requests_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_LOAD_H_
