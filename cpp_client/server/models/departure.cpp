#include "server/models/departure.h"

#include <chrono>
#include <utility>

namespace recsys {

struct Departure::Lent {
  Lent(std::shared_ptr<Hosted> lent, std::shared_ptr<Departure> to)
      : hosted(std::move(lent)), departure(std::move(to)) {}
  ~Lent() { departure->GiveBack(std::move(hosted)); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  std::shared_ptr<Hosted> hosted;
  std::shared_ptr<Departure> departure;
};

std::shared_ptr<Hosted> Departure::Lend(std::shared_ptr<Hosted> hosted) {
  Hosted* const held = hosted.get();
  return {std::make_shared<Lent>(std::move(hosted), shared_from_this()), held};
}

void Departure::GiveBack(std::shared_ptr<Hosted> hosted) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_awaited_) return;  // The caller's copy, which outlives the lock, frees it.
  hosted_ = std::move(hosted);
  back_.notify_all();
}

std::shared_ptr<Hosted> Departure::Await(double timeout_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  back_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                 [this] { return hosted_ != nullptr; });
  is_awaited_ = false;
  return std::move(hosted_);
}

}  // namespace recsys
