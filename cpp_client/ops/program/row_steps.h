#ifndef RECSYS_OPS_PROGRAM_ROW_STEPS_H_
#define RECSYS_OPS_PROGRAM_ROW_STEPS_H_

// Steps of programs that move numbers and compute none: the same on every instruction set.

#include <cstdint>

#include "ops/program/program.h"

namespace recsys::ops {

/// Writes the rows of each bag's IDs one behind the other, and zeros behind them. `found` holds
/// where the rows of all IDs lie, with kRowsAhead more.
void ReadSequences(const Kernels& kernels, const Lookup& lookup, const std::uint8_t* const* found,
                   const Step& step, OutRows out);

/// Writes the number of each bag's IDs.
void ReadLengths(const FeatureIds& feature, std::int64_t first, std::int64_t num_rows, OutRows out);

/// Writes the differences of all pairs of each bag's first `size` IDs.
void ReadDifferences(const FeatureIds& feature, std::int64_t first, std::int64_t num_rows,
                     std::int64_t size, OutRows out);

/// Writes vectors of `from` by their numbers.
void TakeVectors(const Step& step, Rows numbers, Rows from, std::int64_t num_rows, OutRows out);

/// An ID by its row in a tile, and its place in the row.
struct IdAt {
  std::int64_t row = 0, place = 0;
};

/// Returns how many IDs of a row there are, for their number as a step has computed it.
std::int64_t NumIdsOf(float length, std::int64_t most);

/// Writes for each ID the numbers of its row, or those of its place in the row.
void ReadToIds(const Step& step, Rows from, const IdAt* ids, std::int64_t num_ids, OutRows out);

/// Writes the numbers of each ID at its place in its row.
void WriteFromIds(const Step& step, Rows from, const IdAt* ids, std::int64_t num_ids, OutRows out);

/// Writes the rows of some IDs. `found` holds where they lie, with kRowsAhead more.
void ReadIds(const Kernels& kernels, const Lookup& lookup, const std::uint8_t* const* found,
             std::int64_t num_ids, OutRows out);

/// Adds the numbers of each ID to its row, one ID after the other.
void AddFromIds(const Step& step, Rows from, const IdAt* ids, std::int64_t num_ids, OutRows out);

/// Does what kernels' `find` does for a lookup of which some rows were found before.
std::int64_t FindApart(const Kernels& kernels, const Lookup& lookup, const std::uint8_t** rows);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_PROGRAM_ROW_STEPS_H_
