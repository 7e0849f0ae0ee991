#ifndef RECSYS_OPS_PROGRAM_BAGS_PLACES_H_
#define RECSYS_OPS_PROGRAM_BAGS_PLACES_H_

// Steps that compute the first places of each row alone: what bags hold, and not what pads them.

#include <cstdint>
#include <vector>

#include "ops/program/program.h"

namespace recsys::ops {

/// Whether a step bounds the places of the next one.
constexpr bool LeadsPlaces(const Step& step) {
  return step.kind == StepKind::kFirst || step.kind == StepKind::kFirstPairs;
}

/// Returns whether a step, which is right by itself, has the places that the one before it says.
bool HasPlaces(const Step& leading, const Step& step, const std::vector<Form>& forms);

/// Returns which part of a row a step computes for so many places.
double ShareOf(const Step& leading, const Step& step, std::int64_t count);

/// The first places of a row: how many, and the step that says so.
struct FirstPlaces {
  const Step& leading;
  std::int64_t count = 0;
  /// Those before it stay as they are.
  std::int64_t begin = 0;
  /// Of a form the bit of the loop that begins there.
  std::int64_t loop = 0;
};

/// Computes the numbers of these places in a row. `row`: the step for one row, whose numbers follow
/// each other.
void ElementwiseOfPlaces(const Kernels& kernels, const FirstPlaces& places, Elementwise row,
                         OutRows out);

/// Computes the same by a form; sums over no place are zeros. `compute`: a kernel.
void FormOfPlaces(const FirstPlaces& places, void (*compute)(const Formed&, OutRows), Formed row,
                  OutRows out);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_PROGRAM_BAGS_PLACES_H_
