#ifndef RECSYS_BENCH_LANE_H_
#define RECSYS_BENCH_LANE_H_

// A lane sends: connections, one completion queue, and the threads around it. Lanes share nothing
// but the requests.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/measured.h"
#include "bench/requests.h"
#include "recsys/client.h"

namespace recsys::bench {

/// One measurement by all lanes. Times are seconds of MonotonicSeconds().
struct Step {
  double start_s = 0;
  double warm_up_s = 0;
  double duration_s = 0;
  /// A closed loop: so many requests wait for their answers at any time; 0 for an open one.
  int num_in_flight = 0;
  /// An open loop: so many requests become due every second, answers or not.
  double rate_per_s = 0;
  /// What becomes due beyond that is not sent, and counts as failed.
  int max_in_flight = 0;
  /// Each step has arrivals of its own.
  int number = 0;

  bool is_open() const { return num_in_flight == 0; }
  double begin_s() const { return start_s + warm_up_s; }
  double end_s() const { return begin_s() + duration_s; }
};

/// Where requests go.
struct Target {
  std::string address;
  std::optional<ClientTls> tls;
  int num_connections = 1;
  double timeout_s = 30;
};

/// What people are told while it runs. Any thread may read it.
struct Tally {
  std::atomic<std::int64_t> num_answered{0};
  std::atomic<std::int64_t> num_failed{0};
};

/// Belongs to the thread that calls it.
class Lane {
 public:
  /// `requests` live longer than the lane. Throws Error (kConfig) where TLS files cannot be used.
  Lane(const Target& target, const std::vector<Prepared>* requests, std::uint64_t seed);
  ~Lane();

  /// Throws ClientError (UNAVAILABLE) where nobody answers.
  void Connect(double within_s);
  /// Sends, and waits for the last answer. Of the step's rate or number in flight this lane takes
  /// what `step` says.
  Measured Run(const Step& step, std::size_t num_kinds, Tally* tally);

 private:
  struct Call;
  class Receiver;

  Measured RunClosed(const Step& step, std::size_t num_kinds, Tally* tally);
  Measured RunOpen(const Step& step, std::size_t num_kinds, Tally* tally);
  void Send(Call* call, double due_s);
  const Prepared& NextRequest();

  const Target target_;
  const std::vector<Prepared>& requests_;
  const std::uint64_t seed_;
  Generator generator_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  grpc::CompletionQueue queue_;
  std::size_t next_stub_ = 0;
  std::vector<std::uint32_t> order_;
  std::size_t next_request_ = 0;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_LANE_H_
