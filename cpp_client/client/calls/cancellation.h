#ifndef RECSYS_CLIENT_CALLS_CANCELLATION_H_
#define RECSYS_CLIENT_CALLS_CANCELLATION_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "recsys/client.h"

namespace recsys {

/// Connects a call to a Cancellation, for as long as the call lasts.
class CancellationLink {
 public:
  CancellationLink() = default;
  /// `on_cancel` is called at most once, from any thread; immediately if already cancelled. It may
  /// still run while the link is destroyed, so it must own what it uses. `cancellation` may be
  /// null.
  CancellationLink(const std::shared_ptr<Cancellation>& cancellation,
                   std::function<void()> on_cancel);
  ~CancellationLink();
  CancellationLink(CancellationLink&& other) noexcept;
  CancellationLink& operator=(CancellationLink&& other) noexcept;

 private:
  std::shared_ptr<Cancellation::Listeners> listeners_;
  std::uint64_t number_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_CLIENT_CALLS_CANCELLATION_H_
