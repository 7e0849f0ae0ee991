#include "bench/load.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace recsys::bench {
namespace {

constexpr double kConnectS = 10;
// Time for every thread to begin.
constexpr double kBeforeStartS = 0.02;
constexpr double kTickS = 0.1;

/// Seconds of processor time of the whole process, gRPC's own threads included.
double ProcessSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void SleepUntil(double at_s) {
  std::this_thread::sleep_for(std::chrono::duration<double>(at_s - MonotonicSeconds()));
}

/// What lane `i` of `count` takes of a whole.
int Share(int whole, int i, int count) { return whole / count + (i < whole % count ? 1 : 0); }

}  // namespace

Load::Load(const Settings& settings, const ModelMetadata& metadata)
    : num_threads_(settings.num_threads),
      kinds_(KindsOf(settings.shape)),
      requests_(Prepare(metadata, settings.shape, settings.seed)) {
  for (int i = 0; i < num_threads_; ++i) {
    const Target target{settings.address, settings.tls,
                        Share(settings.num_connections, i, num_threads_), settings.timeout_s};
    const std::uint64_t seed =
        (std::uint64_t{settings.seed} << 20) + static_cast<std::uint64_t>(i) + 1;
    lanes_.push_back(std::make_unique<Lane>(target, &requests_, seed));
  }
  for (const auto& lane : lanes_) lane->Connect(kConnectS);
}

Figures Load::Measure(Step step, const Progress& progress) {
  step.start_s = MonotonicSeconds() + kBeforeStartS;
  Tally tally;
  std::vector<Measured> measured(lanes_.size());
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads_; ++i) {
    Step own = step;
    own.num_in_flight = Share(step.num_in_flight, i, num_threads_);
    own.max_in_flight = std::max(Share(step.max_in_flight, i, num_threads_), 1);
    own.rate_per_s = step.rate_per_s / num_threads_;
    const auto at = static_cast<std::size_t>(i);
    threads.emplace_back([this, own, at, &measured, &tally] {
      measured[at] = lanes_[at]->Run(own, kinds_.size(), &tally);
    });
  }
  const Effort effort = Watch(step, tally, progress);
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 1; i < measured.size(); ++i) measured[0].Merge(measured[i]);
  return FiguresOf(std::move(measured[0]), step, effort, kinds_);
}

Effort Load::Watch(const Step& step, const Tally& tally, const Progress& progress) const {
  SleepUntil(step.begin_s());
  const double begin_s = MonotonicSeconds();
  const double begin_cpu_s = ProcessSeconds();
  for (double now_s = begin_s; now_s < step.end_s(); now_s = MonotonicSeconds()) {
    progress(now_s - step.begin_s(), tally.num_answered.load(), tally.num_failed.load());
    SleepUntil(std::min(now_s + kTickS, step.end_s()));
  }
  const double lasted_s = std::max(MonotonicSeconds() - begin_s, 1e-9);
  return {(ProcessSeconds() - begin_cpu_s) / lasted_s, num_threads_};
}

}  // namespace recsys::bench
