#include "server/http/http_server.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <map>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

namespace recsys {
namespace {

// What events are told apart by; connections have numbers above.
constexpr std::uint64_t kListenerId = 0;
constexpr std::uint64_t kMailboxId = 1;
constexpr std::uint64_t kFirstId = 2;
constexpr int kMaxEvents = 128;
constexpr int kMaxAccepts = 64;
constexpr double kMaxWaitSeconds = 60.0;
// Where the process has no file left for a connection, it looks again after that.
constexpr double kAcceptPauseSeconds = 1.0;

std::uint32_t EventsOf(HttpConnection::Interest interest) {
  switch (interest) {
    case HttpConnection::Interest::kRead:
      return EPOLLIN;
    case HttpConnection::Interest::kWrite:
      return EPOLLOUT;
    case HttpConnection::Interest::kNone:
      break;
  }
  // That the client has gone shows to who reads or writes, and would be said again and again.
  return EPOLLRDHUP;
}

}  // namespace

class HttpServer::Loop {
 public:
  Loop(HttpOptions options, HttpHandler& handler)
      : options_(std::move(options)),
        shared_{handler,
                std::make_shared<HttpMailbox>(),
                options_.limits,
                options_.times,
                options_.keeps_alive,
                options_.clock},
        listener_(Listen(options_.host, options_.port, options_.backlog)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        port_(listener_.port) {
    if (!epoll_.is_open()) throw std::system_error(errno, std::generic_category(), "epoll");
    Watch(EPOLL_CTL_ADD, listener_.file.number(), kListenerId, EPOLLIN);
    Watch(EPOLL_CTL_ADD, shared_.mailbox->file(), kMailboxId, EPOLLIN);
    thread_ = std::thread([this] { Run(); });
  }

  ~Loop() { Close(0); }

  int port() const { return port_; }

  void Close(double patience_s) {
    if (!thread_.joinable()) return;
    patience_s_ = patience_s;
    is_closing_.store(true);
    shared_.mailbox->Wake();
    thread_.join();
  }

 private:
  using Connections = std::map<std::uint64_t, std::unique_ptr<HttpConnection>>;
  /// What a connection is watched for, and when it is due, as the loop knows.
  struct Known {
    std::uint32_t events = 0;
    double due_s = 0.0;
  };

  void Run() {
    // A client that has gone shows as an error of the write.
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    while (!is_over_) {
      std::array<epoll_event, kMaxEvents> events{};
      const int count = epoll_wait(epoll_.number(), events.data(), kMaxEvents, TimeoutMs());
      for (int i = 0; i < count; ++i) Handle(events[static_cast<std::size_t>(i)]);
      ExpireTimes();
      if (is_closing_.load()) Finish();
    }
    known_.clear();
    connections_.clear();
  }

  void Handle(const epoll_event& event) {
    const std::uint64_t id = event.data.u64;
    if (id == kListenerId) return Accept();
    if (id == kMailboxId) {
      for (HttpMailbox::Letter& letter : shared_.mailbox->Take()) {
        const auto found = connections_.find(letter.connection);
        if (found == connections_.end()) continue;
        found->second->Take(std::move(letter));
        Settle(found);
      }
      return;
    }
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    if ((event.events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) found->second->HungUp();
    found->second->Proceed();
    Settle(found);
  }

  void Accept() {
    for (int i = 0; i < kMaxAccepts; ++i) {
      FileHandle file(
          accept4(listener_.file.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!file.is_open()) {
        const bool is_exhausted =
            errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (is_exhausted) PauseAccepting();
        if (errno == ECONNABORTED || errno == EINTR) continue;
        return;
      }
      if (HasRoom()) Open(std::move(file));
    }
  }

  bool HasRoom() {
    const auto num_open = static_cast<std::int64_t>(connections_.size());
    if (options_.max_connections == 0 || num_open < options_.max_connections) return true;
    if (!options_.oldest_gives_way) return false;
    Forget(connections_.begin());
    return true;
  }

  void Open(FileHandle file) {
    const std::uint64_t id = next_id_++;
    const std::shared_ptr<SSL_CTX> tls =
        options_.tls == nullptr ? nullptr : options_.tls->context();
    auto connection = std::make_unique<HttpConnection>(shared_, id, std::move(file), tls);
    const int number = connection->file();
    const auto found = connections_.emplace(id, std::move(connection)).first;
    if (number < 0 || !Watch(EPOLL_CTL_ADD, number, id, EPOLLIN)) {
      connections_.erase(found);
      return;
    }
    known_[id] = {EPOLLIN, found->second->due_s()};
    times_.emplace(found->second->due_s(), id);
    found->second->Proceed();
    Settle(found);
  }

  /// Brings what is known of a connection in line with it, or lets it go.
  void Settle(Connections::iterator at) {
    HttpConnection& connection = *at->second;
    if (connection.is_closed()) return Forget(at);
    Known& known = known_[connection.id()];
    const std::uint32_t events = EventsOf(connection.interest());
    if (events != known.events) {
      Watch(EPOLL_CTL_MOD, connection.file(), connection.id(), events);
      known.events = events;
    }
    if (connection.due_s() != known.due_s) {
      times_.erase({known.due_s, connection.id()});
      known.due_s = connection.due_s();
      times_.emplace(known.due_s, connection.id());
    }
  }

  void Forget(Connections::iterator at) {
    const std::uint64_t id = at->first;
    times_.erase({known_[id].due_s, id});
    known_.erase(id);
    // Its socket leaves epoll with it.
    connections_.erase(at);
  }

  void PauseAccepting() {
    resumes_s_ = options_.clock() + kAcceptPauseSeconds;
    Watch(EPOLL_CTL_MOD, listener_.file.number(), kListenerId, 0);
  }

  void ExpireTimes() {
    const double now_s = options_.clock();
    if (resumes_s_ != 0.0 && now_s >= resumes_s_ && listener_.file.is_open()) {
      resumes_s_ = 0.0;
      Watch(EPOLL_CTL_MOD, listener_.file.number(), kListenerId, EPOLLIN);
    }
    while (!times_.empty() && times_.begin()->first <= now_s) {
      const auto found = connections_.find(times_.begin()->second);
      found->second->TimedOut();
      Settle(found);
    }
  }

  int TimeoutMs() const {
    double until_s = times_.empty() ? HUGE_VAL : times_.begin()->first;
    if (resumes_s_ != 0.0) until_s = std::min(until_s, resumes_s_);
    if (is_closing_.load()) until_s = std::min(until_s, ends_s_);
    const double left_s = std::clamp(until_s - options_.clock(), 0.0, kMaxWaitSeconds);
    return static_cast<int>(std::ceil(left_s * 1e3));
  }

  void Finish() {
    if (listener_.file.is_open()) {
      listener_.file.Close();
      ends_s_ = options_.clock() + patience_s_;
      for (auto at = connections_.begin(); at != connections_.end();) {
        const auto next = std::next(at);
        at->second->Finish();
        Settle(at);
        at = next;
      }
    }
    is_over_ = connections_.empty() || options_.clock() >= ends_s_;
  }

  bool Watch(int operation, int file, std::uint64_t id, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = id;
    return epoll_ctl(epoll_.number(), operation, file, &event) == 0;
  }

  const HttpOptions options_;
  const HttpShared shared_;
  ListeningSocket listener_;
  FileHandle epoll_;
  const int port_;
  std::atomic<bool> is_closing_{false};
  /// Set before is_closing_.
  double patience_s_ = 0.0;

  // Of the thread alone.
  bool is_over_ = false;
  double ends_s_ = 0.0;
  double resumes_s_ = 0.0;
  std::uint64_t next_id_ = kFirstId;
  /// The oldest first.
  Connections connections_;
  std::map<std::uint64_t, Known> known_;
  /// When each is due.
  std::set<std::pair<double, std::uint64_t>> times_;
  std::thread thread_;
};

HttpServer::HttpServer(HttpOptions options, HttpHandler& handler)
    : loop_(std::make_unique<Loop>(std::move(options), handler)) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return loop_->port(); }

void HttpServer::Close(double patience_s) { loop_->Close(patience_s); }

}  // namespace recsys
