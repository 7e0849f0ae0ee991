#include "port/polling/listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "port/polling/loops.h"

namespace recsys::http2 {
namespace {

// Connections accepted in a row; then open connections get their turn.
constexpr int kMostAtOnce = 16;
// How long accepting pauses if the process has no file descriptors left, and how often a log line
// says so.
constexpr double kPauseS = 0.05;
constexpr double kLogAgainS = 60;

}  // namespace

Listener::Listener(ListeningSocket socket, PortState* port, Loops* loops)
    : socket_(std::move(socket)), port_(port), loops_(loops) {}

// The file stays open until the listener is destroyed, so that its number is not reused.
void Listener::Refuse() { shutdown(file(), SHUT_RDWR); }

void Listener::Begin(Loop* loop, std::int64_t id) {
  loop_ = loop;
  id_ = id;
  if (!loop_->Poll(EPOLL_CTL_ADD, file(), EPOLLIN, id_)) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void Listener::AcceptAll(double now_s) {
  for (int i = 0; i < kMostAtOnce && !is_stopped_; ++i) {
    FileHandle accepted(accept4(file(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.is_open()) {
      Take(std::move(accepted));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (port_->is_draining) {
      return Stop();
    } else if (errno != ECONNABORTED && errno != EINTR && errno != EPROTO) {
      return Pause(now_s, errno);
    }
  }
}

void Listener::Take(FileHandle file) {
  const std::int64_t most = port_->limits.max_connections;
  if (most > 0 && port_->num_connections.load() >= most) {
    ++port_->counters.refused;
    return;
  }
  ++port_->counters.accepted;
  loops_->Adopt(std::move(file), port_);
}

void Listener::Pause(double now_s, int error) {
  if (now_s >= logs_at_s_) {
    logs_at_s_ = now_s + kLogAgainS;
    Log(LogLevel::kError, std::string("the port cannot accept connections and tries again: ") +
                              std::strerror(error) +
                              (error == EMFILE ? " (raise the process's limit, ulimit -n)" : ""));
  }
  Watch(0);
  loop_->timers().Set(this, now_s + kPauseS);
}

void Listener::OnDue(double /*now_s*/) {
  if (!is_stopped_) Watch(EPOLLIN);
}

void Listener::Stop() {
  if (std::exchange(is_stopped_, true)) return;
  loop_->timers().Remove(this);
  loop_->StopPolling(file());
}

void Listener::Watch(std::uint32_t events) { loop_->Poll(EPOLL_CTL_MOD, file(), events, id_); }

}  // namespace recsys::http2
