#ifndef RECSYS_SERVER_MODELS_MONITOR_H_
#define RECSYS_SERVER_MODELS_MONITOR_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

namespace recsys {

/// The lock that stands around everything that operators may change. It is held for moments: what
/// blocks runs within Blocking. Requests never take it. For std::lock_guard and
/// std::condition_variable_any.
class Monitor {
 public:
  /// `changed`: called after the lock was let go, if Changed was called meanwhile; may take the
  /// lock; must not throw.
  explicit Monitor(std::function<void()> changed) : changed_(std::move(changed)) {}

  void lock() { mutex_.lock(); }
  void unlock() {
    const bool has_changed = std::exchange(has_changed_, false);
    mutex_.unlock();
    if (has_changed && changed_) changed_();
  }
  /// Something that answers has come or gone. With the lock held.
  void Changed() { has_changed_ = true; }

  /// Lets the lock go while `function` runs. With the lock held.
  template <typename Function>
  auto Blocking(Function&& function) {
    const Unlocked unlocked(*this);
    return function();
  }

 private:
  class Unlocked {
   public:
    explicit Unlocked(Monitor& monitor) : monitor_(monitor) { monitor_.unlock(); }
    ~Unlocked() { monitor_.lock(); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    Monitor& monitor_;
  };

  const std::function<void()> changed_;
  std::mutex mutex_;
  bool has_changed_ = false;
};

/// A lock for what takes long: whoever came first goes first. Thread-safe.
class Turns {
 public:
  /// Waits until all who came before are done.
  void lock() {
    std::unique_lock<std::mutex> lock(mutex_);
    const std::uint64_t mine = num_came_++;
    wake_.wait(lock, [this, mine] { return num_done_ == mine; });
  }
  void unlock() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_done_;
    wake_.notify_all();
  }
  bool is_taken() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return num_done_ != num_came_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::uint64_t num_came_ = 0;
  std::uint64_t num_done_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_MONITOR_H_
