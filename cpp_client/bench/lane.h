#ifndef RECSYS_BENCH_LANE_H_
#define RECSYS_BENCH_LANE_H_

// A lane sends requests: it has its own connections, one completion queue, and threads. Lanes share
// only the requests.

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

/// The server and method that requests are sent to.
struct Target {
  std::string address;
  /// The path of the gRPC method, such as /recsys.v1.PredictionService/Predict.
  std::string method;
  std::optional<ClientTls> tls;
  int num_connections = 1;
  /// For requests without a deadline of their own.
  double timeout_s = 30;
};

/// A serialized request. Copies share its bytes.
struct Prepared {
  grpc::ByteBuffer bytes;
  std::int32_t num_rows = 0;
  /// Distinguishes requests in the result.
  std::int32_t kind = 0;
  /// 0 for the target's timeout.
  double deadline_s = 0;
};

/// The requests to send. Random requests are sent repeatedly, shuffled; those of a recording once,
/// in order.
struct Requests {
  std::vector<Prepared> prepared;
  /// For a recording: when each one is due, in seconds from the start.
  std::vector<double> offsets_s;
  bool is_recording = false;
  std::size_t num_kinds = 0;
};

/// One measurement. Times are seconds of MonotonicSeconds().
struct Step {
  double start_s = 0;
  double warm_up_s = 0;
  double duration_s = std::numeric_limits<double>::infinity();
  /// Closed loop: number of unanswered requests at any time; 0 for an open loop.
  int num_in_flight = 0;
  /// Open loop: requests that become due per second; 0 if a recording sets the pace.
  double rate_per_s = 0;
  /// Open loop: maximum unanswered requests; one that becomes due beyond it is not sent and counts
  /// as failed.
  int max_in_flight = 0;
  /// Seeds the step's own arrival times.
  int number = 0;

  bool is_open() const { return num_in_flight == 0; }
  double begin_s() const { return start_s + warm_up_s; }
  double end_s() const { return begin_s() + duration_s; }
};

/// Requests that have ended so far. Readable from any thread.
struct Tally {
  std::atomic<std::int64_t> num_answered{0};
  std::atomic<std::int64_t> num_failed{0};
};

/// Not thread-safe, except for Stop.
class Lane {
 public:
  /// The lane's position among all lanes: it takes every `count`th request of a recording.
  struct Place {
    std::size_t index = 0;
    std::size_t count = 1;
    std::uint64_t seed = 0;
  };

  /// `requests` must outlive the lane.
  Lane(const Target& target, const Requests* requests, const Place& place);
  ~Lane();

  /// Returns false if no connection was made in that time.
  bool Connect(double within_s);
  /// Sends this lane's share `step` of the load and waits for the last answer.
  Measured Run(const Step& step, Tally* tally);
  /// Makes Run cancel its calls and return soon. May be called from any thread; the lane cannot be
  /// used afterwards.
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
  /// Returns when the next request is due; infinity at the end.
  double NextDue(const Step& step);
  /// Returns false if the lane was stopped meanwhile.
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
  /// Indexes of requests, in sending order.
  std::vector<std::uint32_t> order_;
  std::size_t next_request_ = 0;
  double due_s_ = 0;
  std::atomic<bool> is_stopped_{false};
  grpc::Alarm stopping_;
};

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_LANE_H_
