#ifndef RECSYS_SERVER_LIFETIME_H_
#define RECSYS_SERVER_LIFETIME_H_

#include <functional>
#include <memory>

#include "server/native_server.h"

namespace recsys {

/// SIGTERM, SIGINT and SIGHUP as events that one thread waits for; SIGPIPE ends no thread. To be
/// made before the process has a second thread: threads have the signals blocked that were blocked
/// when they were made.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  enum class Event { kStop, kReload, kWoken, kTimeout };
  /// The next event. `timeout_s`: 0 for none.
  Event Wait(double timeout_s = 0);
  /// Lets Wait return kWoken; from any thread.
  void Wake();

 private:
  int signals_ = -1;
  int wakes_ = -1;
};

/// Serves until SIGTERM or SIGINT, then drains; SIGHUP looks for new models and versions
/// (serve/lifetime.py). Prints the ready and the stopped line. Returns the exit code; throws what
/// the start throws.
int ServeUntilStopped(Signals& signals, const std::function<std::unique_ptr<NativeServer>()>& start,
                      const ServerSettings& settings, bool as_json);

}  // namespace recsys

#endif  // RECSYS_SERVER_LIFETIME_H_
