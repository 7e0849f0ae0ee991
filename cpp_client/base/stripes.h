#ifndef RECSYS_BASE_STRIPES_H_
#define RECSYS_BASE_STRIPES_H_

#include <array>
#include <atomic>
#include <cstddef>

namespace recsys {

/// More than there are polling threads; executors share them.
inline constexpr std::size_t kNumStripes = 32;

/// Returns the stripe of the calling thread: threads get them in turn.
inline std::size_t ThisStripe() {
  static std::atomic<std::size_t> last{0};
  thread_local const std::size_t stripe =
      last.fetch_add(1, std::memory_order_relaxed) % kNumStripes;
  return stripe;
}

/// Data that many threads change, once for each stripe and on cache lines of its own: a thread that
/// changes only what is of its stripe hardly ever waits for another one.
template <typename T>
class Striped {
 public:
  /// Returns that of the calling thread.
  T& here() { return all_[ThisStripe()].value; }
  T& operator[](std::size_t stripe) { return all_[stripe].value; }
  const T& operator[](std::size_t stripe) const { return all_[stripe].value; }

 private:
  static constexpr std::size_t kLineBytes = 64;
  struct alignas(kLineBytes) One {
    T value{};
  };
  std::array<One, kNumStripes> all_;
};

}  // namespace recsys

#endif  // RECSYS_BASE_STRIPES_H_
