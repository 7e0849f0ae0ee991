#ifndef RECSYS_BENCH_LANE_H_
#define RECSYS_BENCH_LANE_H_

// A lane sends: its connections, one completion queue, and the threads around it. Lanes share
// nothing but the requests.

#include <grpcpp/alarm.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/measured.h"
#include "recsys/client.h"

namespace recsys::bench {

/// Where requests go.
struct Target {
  std::string address;
  /// The path of the gRPC method, such as /recsys.v1.PredictionService/Predict.
  std::string method;
  std::optional<ClientTls> tls;
  int num_connections = 1;
  /// Of a request without a deadline of its own.
  double timeout_s = 30;
};

/// A request as it goes on the wire. It shares its bytes with its copies.
struct Prepared {
  grpc::ByteBuffer bytes;
  std::int32_t num_rows = 0;
  /// Distinguishes it from others in the result.
  std::int32_t kind = 0;
  /// 0 for the target's timeout.
  double deadline_s = 0;
};

/// What is sent. Random requests are sent over and over, shuffled; those of a recording once, in
/// order.
struct Requests {
  std::vector<Prepared> prepared;
  /// Of a recording: when each one is due, in seconds from the start.
  std::vector<double> offsets_s;
  bool is_recording = false;
  std::size_t num_kinds = 0;
};

/// One measurement. Times are seconds of MonotonicSeconds().
struct Step {
  double start_s = 0;
  double warm_up_s = 0;
  double duration_s = std::numeric_limits<double>::infinity();
  /// Closed loop: requests that are unanswered at any time; 0 for an open loop.
  int num_in_flight = 0;
  /// Open loop: requests that become due every second; 0 where a recording sets the pace.
  double rate_per_s = 0;
  /// Open loop: a request that becomes due beyond this is not sent and counts as failed.
  int max_in_flight = 0;
  /// Each step has arrivals of its own.
  int number = 0;

  bool is_open() const { return num_in_flight == 0; }
  double begin_s() const { return start_s + warm_up_s; }
  double end_s() const { return begin_s() + duration_s; }
};

/// Requests that have ended so far. Any thread may read it.
struct Tally {
  std::atomic<std::int64_t> num_answered{0};
  std::atomic<std::int64_t> num_failed{0};
};

/// Not thread-safe but for Stop.
class Lane {
 public:
  /// What a lane is one of: it takes every `count`th request of a recording.
  struct Place {
    std::size_t index = 0;
    std::size_t count = 1;
    std::uint64_t seed = 0;
  };

  /// `requests` must outlive the lane.
  Lane(const Target& target, const Requests* requests, const Place& place);
  ~Lane();

  /// Returns false where no connection was made in that time.
  bool Connect(double within_s);
  /// Sends this lane's share `step` of the load and waits for the last answer.
  Measured Run(const Step& step, Tally* tally);
  /// Makes Run cancel what is under way and return soon. From any thread; the lane is of no use
  /// afterwards.
  void Stop();

 private:
  struct Call;
  class Calls;
  class Receiver;
  class CpuShare;

  Measured RunClosed(const Step& step, Tally* tally);
  Measured RunOpen(const Step& step, Tally* tally);
  void Receive(Receiver* receiver, Calls* calls);
  /// `due_s` is negative for now.
  void Send(Call* call, const Prepared& request, double due_s);
  void Restart(const Step& step);
  /// Returns null at the end of a recording.
  const Prepared* NextRequest();
  /// When the request that NextRequest would return is due; infinity at the end.
  double NextDue(const Step& step);
  /// Returns false where the lane was stopped meanwhile.
  bool SleepUntil(double at_s) const;

  const Target target_;
  const Requests& requests_;
  const Place place_;
  std::mt19937_64 generator_;
  std::mt19937_64 arrivals_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  grpc::CompletionQueue queue_;
  std::size_t next_stub_ = 0;
  /// Numbers of requests, in the order in which they are sent.
  std::vector<std::uint32_t> order_;
  std::size_t next_request_ = 0;
  double due_s_ = 0;
  std::atomic<bool> is_stopped_{false};
  grpc::Alarm stopping_;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_LANE_H_
