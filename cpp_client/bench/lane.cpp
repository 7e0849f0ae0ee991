#include "bench/lane.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "client/calls/engine.h"

namespace recsys::bench {
namespace {

// A thread that sleeps longer would notice a stop late.
constexpr double kLongestSleepS = 0.1;

double ThreadSeconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

}  // namespace

/// One active request.
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

/// A lane's calls, whose memory is reused. Take and Return may run on two threads.
class Lane::Calls {
 public:
  Call* Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return &all_.emplace_back();
    Call* const call = idle_.back();
    idle_.pop_back();
    return call;
  }

  void Return(Call* call) {
    call->Clear();
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(call);
  }

  /// Only on the receiving thread, once nothing is sent any more.
  void CancelAll() {
    for (Call& call : all_) {
      if (call.context) call.context->TryCancel();
    }
  }

  /// Active calls, plus one while the sending thread may start others.
  std::atomic<std::int64_t> num_open{0};

 private:
  std::mutex mutex_;
  std::deque<Call> all_;
  std::vector<Call*> idle_;
};

/// The share of a core used by the calling thread in the measured time, as sampled by See.
class Lane::CpuShare {
 public:
  explicit CpuShare(const Step& step) : begin_s_(step.begin_s()), end_s_(step.end_s()) {}

  void See(double now_s) {
    if (now_s < begin_s_ || last_s_ >= end_s_) return;
    if (first_s_ == 0) {
      first_s_ = now_s;
      first_cpu_s_ = ThreadSeconds();
    } else if (now_s < last_s_ + kEveryS) {
      return;
    }
    last_s_ = now_s;
    last_cpu_s_ = ThreadSeconds();
  }

  double share() const {
    if (last_s_ <= first_s_) return 0;
    return (last_cpu_s_ - first_cpu_s_) / (last_s_ - first_s_);
  }

 private:
  // Reading the thread's clock takes a system call.
  static constexpr double kEveryS = 0.01;
  const double begin_s_, end_s_;
  double first_s_ = 0, first_cpu_s_ = 0;
  double last_s_ = 0, last_cpu_s_ = 0;
};

/// Counts the calls delivered by the queue.
class Lane::Receiver {
 public:
  Receiver(const Step& step, std::size_t num_kinds, Tally* tally)
      : cpu_(step),
        recorder_({step.begin_s(), step.end_s(), step.is_open(), num_kinds}),
        tally_(tally) {}

  /// Returns when the call has ended.
  double Done(const Call& call) {
    const Times times{call.due_s, call.sent_s, MonotonicSeconds()};
    cpu_.See(times.done_s);
    if (call.status.ok()) {
      recorder_.Answered(times, call.kind, call.num_rows);
      tally_->num_answered.fetch_add(1, std::memory_order_relaxed);
    } else {
      recorder_.Failed(times, call.kind, call.status.error_code(), call.status.error_message());
      tally_->num_failed.fetch_add(1, std::memory_order_relaxed);
    }
    return times.done_s;
  }

  Measured measured() const {
    Measured measured = recorder_.measured();
    measured.cpu_shares = {cpu_.share()};
    return measured;
  }

 private:
  CpuShare cpu_;
  Recorder recorder_;
  Tally* tally_;
};

Lane::Lane(const Target& target, const Requests* requests, const Place& place)
    : target_(target), requests_(*requests), place_(place), generator_(place.seed) {
  ClientOptions options;
  options.tls = target.tls;
  const auto credentials = client::ChannelCredentials(options);
  const grpc::ChannelArguments arguments = client::ChannelArguments(options);
  for (int i = 0; i < target.num_connections; ++i) {
    channels_.push_back(grpc::CreateCustomChannel(target.address, credentials, arguments));
    stubs_.push_back(std::make_unique<grpc::GenericStub>(channels_.back()));
  }
  const std::size_t first = requests_.is_recording ? place.index : 0;
  const std::size_t stride = requests_.is_recording ? place.count : 1;
  for (std::size_t i = first; i < requests_.prepared.size(); i += stride) {
    order_.push_back(static_cast<std::uint32_t>(i));
  }
}

Lane::~Lane() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

bool Lane::Connect(double within_s) {
  const gpr_timespec deadline = client::After(within_s);
  return std::all_of(channels_.begin(), channels_.end(),
                     [&](const auto& channel) { return channel->WaitForConnected(deadline); });
}

Measured Lane::Run(const Step& step, Tally* tally) {
  Restart(step);
  if (!SleepUntil(step.start_s)) return {};
  Measured measured = step.is_open() ? RunOpen(step, tally) : RunClosed(step, tally);
  measured.ended_s = MonotonicSeconds();
  return measured;
}

void Lane::Stop() {
  is_stopped_ = true;
  // Wakes the receiving thread.
  stopping_.Set(&queue_, client::After(0), nullptr);
}

void Lane::Restart(const Step& step) {
  next_request_ = requests_.is_recording ? 0 : order_.size();
  due_s_ = step.start_s;
  arrivals_.seed(place_.seed + 0x9e3779b97f4a7c15ULL * static_cast<std::uint64_t>(step.number + 1));
}

const Prepared* Lane::NextRequest() {
  if (next_request_ == order_.size()) {
    if (requests_.is_recording || order_.empty()) return nullptr;
    std::shuffle(order_.begin(), order_.end(), generator_);
    next_request_ = 0;
  }
  return &requests_.prepared[order_[next_request_++]];
}

double Lane::NextDue(const Step& step) {
  if (!requests_.is_recording) {
    due_s_ += std::exponential_distribution<double>(step.rate_per_s)(arrivals_);
    return due_s_;
  }
  if (next_request_ == order_.size()) return std::numeric_limits<double>::infinity();
  return step.start_s + requests_.offsets_s[order_[next_request_]];
}

bool Lane::SleepUntil(double at_s) const {
  while (!is_stopped_.load(std::memory_order_relaxed)) {
    const double now_s = MonotonicSeconds();
    if (now_s >= at_s) return true;
    const double until_s = std::min(at_s, now_s + kLongestSleepS);
    timespec until{};
    until.tv_sec = static_cast<time_t>(until_s);
    until.tv_nsec = static_cast<long>((until_s - static_cast<double>(until.tv_sec)) * 1e9);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  }
  return false;
}

void Lane::Send(Call* call, const Prepared& request, double due_s) {
  call->kind = request.kind;
  call->num_rows = request.num_rows;
  call->context.emplace();
  call->sent_s = MonotonicSeconds();
  call->due_s = due_s < 0 ? call->sent_s : due_s;
  const double timeout_s = request.deadline_s > 0 ? request.deadline_s : target_.timeout_s;
  call->context->set_deadline(client::After(timeout_s));
  next_stub_ = next_stub_ + 1 == stubs_.size() ? 0 : next_stub_ + 1;
  call->reader =
      stubs_[next_stub_]->PrepareUnaryCall(&*call->context, target_.method, request.bytes, &queue_);
  call->reader->StartCall();
  call->reader->Finish(&call->response, &call->status, call);
}

// One thread does everything: no lock is contended, and the core only sends and receives.
Measured Lane::RunClosed(const Step& step, Tally* tally) {
  Receiver receiver(step, requests_.num_kinds, tally);
  Calls calls;
  for (int i = 0; i < step.num_in_flight; ++i) {
    const Prepared* const request = NextRequest();
    if (request == nullptr) break;
    Send(calls.Take(), *request, -1);
    ++calls.num_open;
  }
  void* tag = nullptr;
  bool ok = false;
  while (calls.num_open > 0 && queue_.Next(&tag, &ok)) {
    Call* const call = static_cast<Call*>(tag);
    if (call == nullptr) {
      calls.CancelAll();
      continue;
    }
    const double done_s = receiver.Done(*call);
    call->Clear();
    const bool goes_on = done_s < step.end_s() && !is_stopped_.load(std::memory_order_relaxed);
    const Prepared* const request = goes_on ? NextRequest() : nullptr;
    if (request != nullptr) {
      Send(call, *request, -1);
    } else {
      --calls.num_open;
    }
  }
  return receiver.measured();
}

// This thread sends when requests are due, independently of earlier ones; another one receives.
Measured Lane::RunOpen(const Step& step, Tally* tally) {
  Calls calls;
  calls.num_open = 1;
  Receiver receiver(step, requests_.num_kinds, tally);
  std::thread receiving([&] { Receive(&receiver, &calls); });
  // By default the kernel may wake a thread 50 us late, to save wake-ups.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  CpuShare cpu(step);
  Recorder unsent({step.begin_s(), step.end_s(), true, requests_.num_kinds});
  const std::string reason =
      std::to_string(step.max_in_flight) + " earlier requests were unanswered";
  for (double due_s = NextDue(step); due_s < step.end_s(); due_s = NextDue(step)) {
    if (!SleepUntil(due_s)) break;
    cpu.See(due_s);
    const Prepared* const request = NextRequest();
    if (request == nullptr) break;
    if (calls.num_open.load(std::memory_order_relaxed) > step.max_in_flight) {
      unsent.Failed({due_s, due_s, due_s}, request->kind, kNotSent, reason);
      tally->num_failed.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    calls.num_open.fetch_add(1);
    Send(calls.Take(), *request, due_s);
  }
  cpu.See(MonotonicSeconds());
  grpc::Alarm all_sent;
  all_sent.Set(&queue_, client::After(0), &calls);
  receiving.join();
  Measured measured = unsent.measured();
  measured.cpu_shares = {cpu.share()};
  measured.Merge(receiver.measured());
  return measured;
}

void Lane::Receive(Receiver* receiver, Calls* calls) {
  bool is_all_sent = false;
  void* tag = nullptr;
  bool ok = false;
  while (calls->num_open.load() > 0 && queue_.Next(&tag, &ok)) {
    if (tag != nullptr && tag != calls) {
      Call* const call = static_cast<Call*>(tag);
      receiver->Done(*call);
      calls->Return(call);
      calls->num_open.fetch_sub(1);
      continue;
    }
    if (tag == calls) {
      is_all_sent = true;
      calls->num_open.fetch_sub(1);
    }
    if (is_all_sent && is_stopped_) calls->CancelAll();
  }
}

}  // namespace recsys::bench
