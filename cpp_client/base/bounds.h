#ifndef RECSYS_BASE_BOUNDS_H_
#define RECSYS_BASE_BOUNDS_H_

#include <cstdint>
#include <limits>
#include <optional>

namespace recsys {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();

/// The numbers that a field of settings may hold. They are finite in any case.
struct Bounds {
  double least = -kUnbounded;
  double most = kUnbounded;
  /// Whether it may also be 0, which means no limit.
  bool or_zero = false;
};

/// Checks a field by the name in the message. Throws Error (kConfig).
void CheckBounds(const char* name, std::int64_t value, const Bounds& bounds);
void CheckBounds(const char* name, double value, const Bounds& bounds);
inline void CheckBounds(const char* name, const std::optional<double>& value,
                        const Bounds& bounds) {
  if (value) CheckBounds(name, *value, bounds);
}

}  // namespace recsys

#endif  // RECSYS_BASE_BOUNDS_H_
