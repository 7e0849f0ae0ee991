#ifndef RECSYS_BASE_RANDOM_H_
#define RECSYS_BASE_RANDOM_H_

#include <cstdint>
#include <random>

namespace recsys {

/// Returns a uniformly distributed random number in [0, 1), fast but not secret (SplitMix64). Each
/// thread has its own sequence.
inline double RandomShare() {
  thread_local std::uint64_t state = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  std::uint64_t bits = state += 0x9e3779b97f4a7c15U;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
  bits ^= bits >> 31;
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace recsys

#endif  // RECSYS_BASE_RANDOM_H_
