#include "bench/lane.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "client/engine.h"
#include "client/messages.h"

namespace recsys::bench {
namespace {

/// Until then by the clock, exact to some microseconds.
void SleepUntil(double at_s) {
  timespec until{};
  until.tv_sec = static_cast<time_t>(at_s);
  until.tv_nsec = static_cast<long>((at_s - static_cast<double>(until.tv_sec)) * 1e9);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace

/// One request under way; its memory is used again by the next.
struct Lane::Call {
  std::optional<grpc::ClientContext> context;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
  grpc::ByteBuffer response;
  grpc::Status status;
  double due_s = 0;
  double sent_s = 0;
  std::int32_t kind = 0;
  std::int32_t num_rows = 0;

  void Clear() {
    reader.reset();
    context.reset();
    response.Clear();
  }
};

/// Counts what comes out of the queue.
class Lane::Receiver {
 public:
  Receiver(const Step& step, std::size_t num_kinds, Tally* tally)
      : recorder_({step.begin_s(), step.end_s(), step.is_open(), num_kinds}), tally_(tally) {}

  /// Returns when the call has ended.
  double Done(const Call& call) {
    const Times times{call.due_s, call.sent_s, MonotonicSeconds()};
    if (call.status.ok()) {
      recorder_.Answered(times, call.kind, call.num_rows);
      tally_->num_answered.fetch_add(1, std::memory_order_relaxed);
    } else {
      const auto code = static_cast<StatusCode>(call.status.error_code());
      recorder_.Failed(times, call.kind, StatusName(code), call.status.error_message());
      tally_->num_failed.fetch_add(1, std::memory_order_relaxed);
    }
    return times.done_s;
  }

  const Measured& measured() const { return recorder_.measured(); }

 private:
  Recorder recorder_;
  Tally* tally_;
};

Lane::Lane(const Target& target, const std::vector<Prepared>* requests, std::uint64_t seed)
    : target_(target), requests_(*requests), seed_(seed), generator_(seed) {
  ClientOptions options;
  options.tls = target.tls;
  const auto credentials = client::ChannelCredentials(options);
  const grpc::ChannelArguments arguments = client::ChannelArguments(options);
  for (int i = 0; i < target.num_connections; ++i) {
    channels_.push_back(grpc::CreateCustomChannel(target.address, credentials, arguments));
    stubs_.push_back(std::make_unique<grpc::GenericStub>(channels_.back()));
  }
  order_.resize(requests_.size());
  std::iota(order_.begin(), order_.end(), 0U);
  next_request_ = order_.size();
}

Lane::~Lane() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

void Lane::Connect(double within_s) {
  const gpr_timespec deadline = client::After(within_s);
  for (const auto& channel : channels_) {
    if (!channel->WaitForConnected(deadline)) {
      throw ClientError(StatusCode::kUnavailable, "no connection to " + target_.address);
    }
  }
}

// The requests over and over, in an order of their own each time.
const Prepared& Lane::NextRequest() {
  if (next_request_ == order_.size()) {
    std::shuffle(order_.begin(), order_.end(), generator_);
    next_request_ = 0;
  }
  return requests_[order_[next_request_++]];
}

void Lane::Send(Call* call, double due_s) {
  const Prepared& request = NextRequest();
  call->kind = request.kind;
  call->num_rows = request.num_rows;
  call->context.emplace();
  call->sent_s = MonotonicSeconds();
  call->due_s = due_s < 0 ? call->sent_s : due_s;
  call->context->set_deadline(client::After(target_.timeout_s));
  next_stub_ = next_stub_ + 1 == stubs_.size() ? 0 : next_stub_ + 1;
  call->reader = stubs_[next_stub_]->PrepareUnaryCall(&*call->context, client::kPredict,
                                                      request.bytes, &queue_);
  call->reader->StartCall();
  call->reader->Finish(&call->response, &call->status, call);
}

Measured Lane::Run(const Step& step, std::size_t num_kinds, Tally* tally) {
  SleepUntil(step.start_s);
  return step.is_open() ? RunOpen(step, num_kinds, tally) : RunClosed(step, num_kinds, tally);
}

// One thread does all of it: no lock is ever waited for, and the core does nothing but sending and
// receiving.
Measured Lane::RunClosed(const Step& step, std::size_t num_kinds, Tally* tally) {
  Receiver receiver(step, num_kinds, tally);
  std::vector<Call> calls(static_cast<std::size_t>(step.num_in_flight));
  for (Call& call : calls) Send(&call, -1);
  std::size_t num_open = calls.size();
  void* tag = nullptr;
  bool ok = false;
  while (num_open > 0 && queue_.Next(&tag, &ok)) {
    Call* const call = static_cast<Call*>(tag);
    const double done_s = receiver.Done(*call);
    call->Clear();
    if (done_s < step.end_s()) {
      Send(call, -1);
    } else {
      --num_open;
    }
  }
  return receiver.measured();
}

// One thread sends when requests are due, whatever becomes of earlier ones; another one receives.
Measured Lane::RunOpen(const Step& step, std::size_t num_kinds, Tally* tally) {
  std::atomic<std::int64_t> num_open{0};
  // One more than what is under way until the last was sent: it keeps the receiver waiting.
  num_open = 1;
  Receiver receiver(step, num_kinds, tally);
  std::thread receiving([&] {
    void* tag = nullptr;
    bool ok = false;
    while (num_open.load() > 0 && queue_.Next(&tag, &ok)) {
      const std::unique_ptr<Call> call(static_cast<Call*>(tag));
      if (call != nullptr) receiver.Done(*call);
      num_open.fetch_sub(1);
    }
  });
  // The kernel may wake a thread 50 us late by default, to save wake-ups.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  Recorder unsent({step.begin_s(), step.end_s(), true, num_kinds});
  Generator arrivals(seed_ + 0x9e3779b97f4a7c15ULL * static_cast<std::uint64_t>(step.number + 1));
  std::exponential_distribution<double> gap(step.rate_per_s);
  const std::string reason =
      std::to_string(step.max_in_flight) + " earlier requests were unanswered";
  for (double due_s = step.start_s + gap(arrivals); due_s < step.end_s(); due_s += gap(arrivals)) {
    if (due_s > MonotonicSeconds()) SleepUntil(due_s);
    if (num_open.load(std::memory_order_relaxed) > step.max_in_flight) {
      unsent.Failed({due_s, due_s, due_s}, 0, kNotSent, reason);
      tally->num_failed.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    num_open.fetch_add(1);
    Send(std::make_unique<Call>().release(), due_s);
  }
  // Wakes the receiver, and takes the one away that kept it.
  grpc::Alarm last;
  last.Set(&queue_, client::After(0), nullptr);
  receiving.join();
  Measured measured = receiver.measured();
  measured.Merge(unsent.measured());
  return measured;
}

}  // namespace recsys::bench
