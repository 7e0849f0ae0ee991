#ifndef RECSYS_TESTS_CORE_QUEUE_POLICY_SIMULATOR_H_
#define RECSYS_TESTS_CORE_QUEUE_POLICY_SIMULATOR_H_

// A server under a closed loop, in simulated time: clients, a polling thread and executors share
// processors. The policy under test is the real one.

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "engine/core/queue/policy.h"

namespace recsys {

/// Seconds of work of each step.
struct SimulatedCosts {
  double send_s = 12e-6;
  double read_s = 10e-6;
  double answer_s = 6e-6;
  double wake_s = 20e-6;
  /// The seconds of a batch.
  double fixed_s = 90e-6;
  double per_row_s = 22e-6;
};

struct SimulatedLoad {
  int num_processors = 2;
  int in_flight = 1;
  std::int64_t rows = 1;
  SimulatedCosts costs;
};

/// What is measured: closed-loop throughput, and where the batches ran.
struct SimulatedRun {
  double requests_per_s = 0;
  double mean_latency_s = 0;
  int num_batches = 0;
  int num_here = 0;
  int most_executors = 0;
};

/// Runs so many seconds of it. With `fixed_executors` > 0 the policy is not asked: a batch starts
/// whenever one of so many executors is free, and none runs in the polling thread.
SimulatedRun Simulate(const SimulatedLoad& load, int fixed_executors = 0, double seconds = 0.5);

}  // namespace recsys

#endif  // RECSYS_TESTS_CORE_QUEUE_POLICY_SIMULATOR_H_
