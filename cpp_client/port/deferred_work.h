#ifndef RECSYS_PORT_DEFERRED_WORK_H_
#define RECSYS_PORT_DEFERRED_WORK_H_

#include "base/clock.h"

namespace recsys {

/// What handlers leave until their polling thread has read all that it can read at once. Each
/// polling thread makes one, uses it alone and destroys it. This one has nothing to do.
class DeferredWork {
 public:
  virtual ~DeferredWork() = default;

  /// Called after each event: the work may have waited long enough.
  virtual void AfterEvent() {}
  /// Called when nothing more can be read, when WaitS has passed, and after each round of events
  /// while there is more to read than a round takes.
  virtual void AfterRound() {}
  /// Returns how many seconds the thread may wait for further events; infinite if nothing is left.
  virtual double WaitS() const { return kNever; }
};

}  // namespace recsys

#endif  // RECSYS_PORT_DEFERRED_WORK_H_
