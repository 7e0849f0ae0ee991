#ifndef RECSYS_SERVER_MODELS_DEPARTURE_H_
#define RECSYS_SERVER_MODELS_DEPARTURE_H_

#include <condition_variable>
#include <memory>
#include <mutex>

#include "server/core/hosted.h"

namespace recsys {

/// Where a loaded version comes back to once nobody uses it any more, so that its memory is freed
/// by the thread that waits for it: giving many pages back takes a while, and requests' threads
/// have no time. Thread-safe.
class Departure : public std::enable_shared_from_this<Departure> {
 public:
  /// The same version; when the last copy of what this returns goes, the version has come back.
  /// Once.
  std::shared_ptr<Hosted> Lend(std::shared_ptr<Hosted> hosted);

  /// Waits until it has come back, to be freed by the caller; not for ever: null where somebody
  /// holds it for too long, who frees it then. Once.
  std::shared_ptr<Hosted> Await(double timeout_s);

 private:
  struct Lent;
  void GiveBack(std::shared_ptr<Hosted> hosted);

  std::mutex mutex_;
  std::condition_variable back_;
  std::shared_ptr<Hosted> hosted_;
  bool is_awaited_ = true;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_DEPARTURE_H_
