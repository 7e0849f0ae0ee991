#include "server/lifetime.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

namespace recsys {
namespace {

sigset_t Handled() {
  sigset_t handled;
  sigemptyset(&handled);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&handled, number);
  return handled;
}

/// One line for scripts or for people; flushed, because whoever waits for it reads a pipe.
void Say(const nlohmann::ordered_json& values, bool as_json) {
  std::string line;
  if (as_json) {
    line = values.dump();
  } else {
    for (const auto& [name, value] : values.items()) {
      if (value.is_null()) continue;
      if (line.empty()) {
        line = value.get<std::string>() + ":";
      } else {
        line += " " + name + "=" + (value.is_string() ? value.get<std::string>() : value.dump());
      }
    }
  }
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

nlohmann::ordered_json Port(const std::optional<int>& port) {
  return port ? nlohmann::ordered_json(*port) : nlohmann::ordered_json();
}

void SayReady(const ReadyFacts& facts, const std::string& host, bool as_json) {
  Say({{"event", "ready"},
       {"model", facts.model},
       {"version", facts.version},
       {"target", facts.target},
       {"models", facts.num_models},
       {"host", host},
       {"port", facts.port},
       {"metrics_port", Port(facts.metrics_port)},
       {"http_port", Port(facts.http_port)},
       {"admin_port", Port(facts.admin_port)}},
      as_json);
}

void SayStopped(const NativeServer& server, bool in_time, bool as_json) {
  // Python says True to people.
  nlohmann::ordered_json values = {{"event", "stopped"}};
  values["in_time"] = as_json ? nlohmann::ordered_json(in_time)
                              : nlohmann::ordered_json(in_time ? "True" : "False");
  static constexpr const char* kNames[] = {"ok",          "invalid", "not_found",
                                           "rejected",    "expired", "cancelled",
                                           "unavailable", "failed",  "accepted"};
  const auto outcomes = server.outcomes();
  for (const char* name : kNames) values[name] = outcomes.at(name);
  Say(values, as_json);
}

/// How the first load ended; told by another thread.
struct Loaded {
  std::mutex mutex;
  bool is_done = false;
  std::exception_ptr error;
};

}  // namespace

Signals::Signals() {
  const sigset_t handled = Handled();
  sigset_t blocked = handled;
  // Whoever writes where nobody reads is told so by the write, gRPC's log on stderr too.
  sigaddset(&blocked, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  signals_ = signalfd(-1, &handled, SFD_CLOEXEC);
  wakes_ = eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || wakes_ < 0)
    throw std::system_error(errno, std::generic_category(), "signals");
}

Signals::~Signals() {
  close(signals_);
  close(wakes_);
}

Signals::Event Signals::Wait(double timeout_s) {
  pollfd files[] = {{signals_, POLLIN, 0}, {wakes_, POLLIN, 0}};
  const int timeout_ms = timeout_s > 0 ? static_cast<int>(std::fmin(timeout_s * 1e3 + 1, 1e9)) : -1;
  while (true) {
    const int ready = poll(files, 2, timeout_ms);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return Event::kTimeout;
    if (files[0].revents != 0) {
      signalfd_siginfo info;
      if (read(signals_, &info, sizeof(info)) != sizeof(info)) continue;
      return info.ssi_signo == SIGHUP ? Event::kReload : Event::kStop;
    }
    std::uint64_t count = 0;
    if (read(wakes_, &count, sizeof(count)) != sizeof(count)) continue;
    return Event::kWoken;
  }
}

void Signals::Wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wakes_, &one, sizeof(one));
}

int ServeUntilStopped(Signals& signals, const std::function<std::unique_ptr<NativeServer>()>& start,
                      const ServerSettings& settings, bool as_json) {
  // Never destroyed: the process ends with it. Its threads may then still load a model or compute a
  // batch, and would be waited for.
  NativeServer& server = *start().release();
  const auto loaded = std::make_shared<Loaded>();
  server.Load([loaded, &signals](std::exception_ptr error) {
    const std::lock_guard lock(loaded->mutex);
    loaded->is_done = true;
    loaded->error = std::move(error);
    signals.Wake();
  });
  bool is_ready = false;
  bool is_asked = false;
  while (true) {
    const Signals::Event event = signals.Wait(is_ready ? settings.poll_repository_s : 0);
    if (event == Signals::Event::kStop) break;
    if (event == Signals::Event::kWoken) {
      const std::lock_guard lock(loaded->mutex);
      if (loaded->error) {
        server.Stop();
        std::rethrow_exception(loaded->error);
      }
      SayReady(server.ready_facts(), settings.host, as_json);
      is_ready = true;
    } else {
      is_asked = true;
    }
    // What is asked for while the first look is under way comes after it.
    if (is_ready && std::exchange(is_asked, false)) server.Rescan();
  }
  const bool in_time = server.Stop();
  SayStopped(server, in_time, as_json);
  return in_time ? 0 : 1;
}

}  // namespace recsys
