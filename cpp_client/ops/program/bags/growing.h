#ifndef RECSYS_OPS_PROGRAM_BAGS_GROWING_H_
#define RECSYS_OPS_PROGRAM_BAGS_GROWING_H_

#include <cstdint>
#include <string>
#include <vector>

namespace recsys::ops {

struct Program;

/// How a program goes on where IDs are appended to the bags of a feature: some steps begin at the
/// first new place, because what they compute of those before stays as it is.
struct Growing {
  struct Kept {
    std::int64_t buffer = 0;
    /// Numbers of a place; 0 where a row is kept as a whole.
    std::int64_t each = 0;
  };
  std::int64_t feature = 0;
  /// Bags of as many IDs, or more, are computed from the beginning. 0: all are.
  std::int64_t size = 0;
  /// The first new place is a multiple of it: places between were new before.
  std::int64_t every = 1;
  /// What steps read of the places before.
  std::vector<Kept> kept;
  /// By step that leads places, in order: the bit of the loop of the next step's form that begins
  /// at the first new place, 0 without a form; -1 if it begins at the first place.
  std::vector<std::int64_t> loops;

  bool any() const { return size > 0; }
};

/// A row whose bag may have grown.
struct GrownRow {
  /// The IDs that it had, whose state is `before`, and where steps begin, which is not behind
  /// these; 0 and null if it is computed from the beginning.
  std::int64_t num_before = 0, begin = 0;
  const float* before = nullptr;
  /// Its IDs, and where their state is written. Null for nowhere.
  std::int64_t num_ids = 0;
  float* state = nullptr;
};

/// Lets all rows be computed from the beginning, unless steps still write what is kept: some may
/// have become constants.
void DropGrowingOfConstants(Program* program);

/// Returns how many numbers the state of so many IDs takes.
std::int64_t NumbersOfState(const Program& program, std::int64_t num_ids);

/// Sets which steps begin at the first new place: pairs of the position of a step that leads places
/// and the bit of a loop. Returns an error text, empty if they and what is kept are right.
std::string SetGrowing(Growing growing, const std::vector<std::vector<std::int64_t>>& steps,
                       Program* program);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_PROGRAM_BAGS_GROWING_H_
