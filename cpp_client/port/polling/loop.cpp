#include "port/polling/loop.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <system_error>
#include <utility>

#include "base/allocator.h"
#include "base/clock.h"
#include "base/log.h"
#include "port/polling/listener.h"

namespace recsys::http2 {
namespace {

constexpr int kMaxEvents = 256;
// Maximum a connection may read in a turn.
constexpr std::size_t kReadBytes = 64 << 10;
// A round serves all connections with new input; then some of the backlog, until that has taken
// this long, and this many posted answers and timers. So a connection that waits for each answer
// waits for a round, however long the backlog is.
constexpr double kBacklogS = 200e-6;
constexpr std::size_t kAnswersPerRound = 64;
constexpr int kTimersPerRound = 64;
constexpr std::chrono::milliseconds kPause(50);
// Connections moved to another loop at a time, and the work (Polled::Work) that is worth a move.
constexpr std::size_t kMovesPerRound = 256;
constexpr double kLeastWork = 1;
// The longest sleep: the system's clocks overflow.
constexpr double kMostPatienceS = 3600;

/// Returns an ID that no connection and no listener of the process has.
std::int64_t NextId() {
  static std::atomic<std::int64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// OpenSSL may write to connections that the client has closed.
void BlockBrokenPipes() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

Loop::Loop(std::function<std::unique_ptr<DeferredWork>()> make_deferred_work)
    : make_deferred_work_(std::move(make_deferred_work)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      outbox_(std::make_shared<Outbox>()),
      freed_memory_(&timers_, ReturnMemory),
      buffer_(kReadBytes) {
  if (!epoll_.is_open()) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  if (!Poll(EPOLL_CTL_ADD, outbox_->file(), EPOLLIN, kOutboxId)) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

Loop::~Loop() { Stop(); }

void Loop::Start(std::string name) {
  thread_ = std::thread([this, name = std::move(name)] {
    pthread_setname_np(pthread_self(), name.c_str());
    clockid_t clock = kNoClock;
    if (pthread_getcpuclockid(pthread_self(), &clock) == 0) clock_ = clock;
    Run();
  });
}

double Loop::processor_s() const {
  const clockid_t clock = clock_.load();
  timespec time = {};
  // Also a thread that has ended has no such clock.
  if (clock == kNoClock || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void Loop::Stop() {
  if (!thread_.joinable()) return;
  outbox_->Run([](Loop& loop) { loop.is_ending_ = true; });
  thread_.join();
}

bool Loop::Poll(int operation, int file, std::uint32_t events, std::int64_t id) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = static_cast<std::uint64_t>(id);
  return epoll_ctl(epoll_.number(), operation, file, &event) == 0;
}

void Loop::StopPolling(int file) { epoll_ctl(epoll_.number(), EPOLL_CTL_DEL, file, nullptr); }

void Loop::Watch(Listener* listener) {
  const std::int64_t id = NextId();
  listener->Begin(this, id);
  listeners_.emplace(id, listener);
}

void Loop::StopListening(const PortState* port) {
  for (auto one = listeners_.begin(); one != listeners_.end();) {
    if (&one->second->port() != port) {
      ++one;
      continue;
    }
    one->second->Stop();
    one = listeners_.erase(one);
  }
}

void Loop::Adopt(FileHandle file, PortState* port) {
  ++num_connections_;
  ++port->num_connections;
  // std::function must be copyable; files are not.
  auto shared = std::make_shared<FileHandle>(std::move(file));
  const bool is_taken =
      outbox_->Run([shared, port](Loop& loop) { loop.Open(std::move(*shared), port); });
  if (is_taken) return;
  --num_connections_;
  --port->num_connections;
}

void Loop::Drain(const PortState* port) {
  outbox_->Run([port](Loop& loop) {
    for (const auto& [id, listener] : loop.listeners_) {
      if (&listener->port() == port) listener->Stop();
    }
    for (const auto& [id, connection] : loop.connections_) {
      if (&connection->port() == port) connection->Drain();
    }
  });
}

void Loop::Open(FileHandle file, PortState* port) {
  const std::int64_t id = NextId();
  std::unique_ptr<Polled> connection = port->Open(this, id, std::move(file));
  Polled& opened = *connection;
  connections_.emplace(id, std::move(connection));
  if (port->is_draining) opened.Drain();
}

void Loop::Move(double share, Loop* to) {
  std::vector<std::pair<double, std::int64_t>> by_work;
  double left = 0;
  for (const auto& [id, connection] : connections_) {
    by_work.emplace_back(connection->Work(now_s_), id);
    left += share * by_work.back().first;
  }
  const std::size_t num = std::min(by_work.size(), kMovesPerRound);
  std::partial_sort(by_work.begin(), by_work.begin() + static_cast<std::ptrdiff_t>(num),
                    by_work.end(), std::greater<>());
  by_work.resize(num);
  for (const auto& [work, id] : by_work) {
    // One with more than that would only take its load along.
    if (share < 1 && (work > left || work < kLeastWork)) continue;
    left -= work;
    Hand(id, to);
  }
}

void Loop::Hand(std::int64_t id, Loop* to) {
  const auto found = connections_.find(id);
  Polled& leaving = *found->second;
  const PortState& port = leaving.port();
  if (leaving.is_closed() || port.is_draining || port.is_ending || !leaving.MayLeave()) return;
  // std::function must be copyable.
  const auto moving = std::make_shared<std::unique_ptr<Polled>>(std::move(found->second));
  connections_.erase(found);
  --num_connections_;
  ++to->num_connections_;
  leaving.LeaveFor(to);
  if (to->outbox_->Run([moving](Loop& loop) { loop.Join(std::move(*moving)); })) {
    ++num_moved_;
    return;
  }
  // The other thread has ended, so this one will.
  --to->num_connections_;
  ++num_connections_;
  leaving.LeaveFor(this);
  Join(std::move(*moving));
}

void Loop::Join(std::unique_ptr<Polled> connection) {
  Polled& joined = *connection;
  connections_.emplace(joined.id(), std::move(connection));
  joined.Join();
  if (joined.port().is_draining) joined.Drain();
}

bool Loop::IsRoundLong() const { return MonotonicSeconds() - now_s_ > kBacklogS; }

void Loop::CloseForMemory(std::int64_t id) {
  if (Polled* const connection = Find(id)) connection->CloseForMemory();
}

Polled* Loop::Find(std::int64_t id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

double Loop::PatienceS(const DeferredWork& deferred) {
  const bool has_work = !backlog_.empty() || !unflushed_.empty() || !posted_before_.is_empty();
  if (has_work || !outbox_->Sleep()) return 0;
  return std::min(timers_.next_s() - MonotonicSeconds(), deferred.WaitS());
}

int Loop::Wait(double seconds, epoll_event* events) {
  timespec time = {};
  if (seconds > 0 && !std::isinf(seconds)) {
    seconds = std::min(seconds, kMostPatienceS);
    time.tv_sec = static_cast<time_t>(seconds);
    time.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);  // NOLINT: POSIX
  }
  // epoll_pwait2 by its number: glibc has the function since 2.35, and wheels run on 2.34.
  const int num_events =
      static_cast<int>(syscall(SYS_epoll_pwait2, epoll_.number(), events, kMaxEvents,
                               std::isinf(seconds) ? nullptr : &time, nullptr, std::size_t{0}));
  if (num_events < 0 && errno != EINTR) PauseAfter(errno);
  outbox_->Awake();
  now_s_ = MonotonicSeconds();
  return num_events;
}

// The system may be temporarily short of memory: the port keeps trying.
void Loop::PauseAfter(int error) {
  if (std::exchange(logged_error_, error) != error) {
    Log(LogLevel::kError,
        std::string("the port cannot wait for events and tries again: ") + std::strerror(error));
  }
  std::this_thread::sleep_for(kPause);
}

void Loop::Run() {
  BlockBrokenPipes();
  outbox_->BeginPolling();
  const std::unique_ptr<DeferredWork> deferred = make_deferred_work_();
  epoll_event events[kMaxEvents];
  while (!is_ending_) {
    const int num_events = Wait(PatienceS(*deferred), events);
    num_busy_ = std::max(num_events, 0) + static_cast<int>(backlog_.size());
    for (int i = 0; i < num_events; ++i) {
      Dispatch(events[i]);
      deferred->AfterEvent();
    }
    if (num_events > 0 && !backlog_.empty()) {
      // Those that have no backlog do not wait for those that have one.
      deferred->AfterRound();
      FlushDirty();
    }
    const bool has_backlog = TakeTurns();
    RunTasks();
    DeliverPosted(kAnswersPerRound);
    timers_.Fire(now_s_, kTimersPerRound);
    if (num_events <= 0 || has_backlog) deferred->AfterRound();
    FlushDirty();
    NoteBusy();
    if (!listeners_.empty()) freed_memory_.Note(HeldBytes(), now_s_);
  }
  deferred->AfterRound();
  EndAll();
}

void Loop::NoteBusy() {
  const double end_s = MonotonicSeconds();
  const auto taken_ns = static_cast<std::int64_t>((end_s - now_s_) * 1e9);
  busy_ns_.store(busy_ns_.load(std::memory_order_relaxed) + taken_ns, std::memory_order_relaxed);
  if (look_ && end_s >= next_look_s_) next_look_s_ = look_(end_s);
}

void Loop::Dispatch(const epoll_event& event) {
  const auto id = static_cast<std::int64_t>(event.data.u64);
  if (id == kOutboxId) return outbox_->ClearWake();
  if (Polled* const connection = Find(id)) return connection->OnReady(event.events);
  const auto found = listeners_.find(id);
  if (found != listeners_.end()) found->second->AcceptAll(now_s_);
}

bool Loop::TakeTurns() {
  const double end_s = MonotonicSeconds() + kBacklogS;
  // No connection gets two turns in a round.
  const std::size_t most = backlog_.size();
  for (std::size_t i = 0; i < most && (i == 0 || MonotonicSeconds() < end_s); ++i) {
    const std::int64_t id = backlog_.front();
    backlog_.pop_front();
    if (Polled* const connection = Find(id)) connection->OnTurn();
  }
  return most > 0;
}

void Loop::RunTasks() {
  outbox_->TakeTasks(&tasks_);
  for (const auto& task : tasks_) task(*this);
  tasks_.clear();
}

void Loop::DeliverPosted(std::size_t at_most) {
  outbox_->TakeCalls(&posted_);
  posted_before_.Deliver(&posted_, at_most);
}

void Loop::FlushDirty() {
  dirty_.insert(dirty_.end(), unflushed_.begin(), unflushed_.end());
  unflushed_.clear();
  // Flushing may mark other connections dirty.
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    const std::int64_t id = dirty_[i];
    Polled* const connection = Find(id);
    if (connection == nullptr) continue;
    if (!connection->is_closed()) connection->Flush();
    if (connection->is_closed()) Delete(id);
  }
  dirty_.clear();
}

void Loop::Delete(std::int64_t id) {
  const auto found = connections_.find(id);
  PortState& port = found->second->port();
  connections_.erase(found);
  --num_connections_;
  // Last: without connections, the port may be destroyed.
  --port.num_connections;
}

std::int64_t Loop::HeldBytes() const {
  std::int64_t sum = 0;
  for (const auto& [id, listener] : listeners_) {
    sum += listener->port().counters.held_bytes.load(std::memory_order_relaxed);
  }
  return sum;
}

void Loop::SendPosted() {
  for (int i = 0; i < 2; ++i) DeliverPosted(std::numeric_limits<std::size_t>::max());
  FlushDirty();
}

void Loop::EndPort(const PortState* port) {
  SendPosted();
  std::vector<std::int64_t> ended;
  for (const auto& [id, connection] : connections_) {
    if (&connection->port() != port) continue;
    connection->End();
    ended.push_back(id);
  }
  for (const std::int64_t id : ended) Delete(id);
}

void Loop::EndAll() {
  // Answers posted before the end are still sent.
  RunTasks();
  SendPosted();
  std::vector<std::int64_t> ended;
  for (const auto& [id, connection] : connections_) {
    connection->End();
    ended.push_back(id);
  }
  for (const std::int64_t id : ended) Delete(id);
  outbox_->Close();
}

}  // namespace recsys::http2
