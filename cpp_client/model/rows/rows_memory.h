#ifndef RECSYS_MODEL_ROWS_ROWS_MEMORY_H_
#define RECSYS_MODEL_ROWS_ROWS_MEMORY_H_

#include <torch/types.h>

#include <cstdint>
#include <string>

#include "recsys/model.h"

namespace recsys {

// Where rows lie in memory: on huge pages, locked, on which NUMA nodes (recsys/rows/memory.py).

/// Throws Error (kConfig) if an option of the rows' memory is out of its range, or does not fit the
/// others.
void CheckRowsMemory(const ModelOptions& options);

/// Returns how a tensor in host memory is held now; zeros where the system does not tell.
RowsPages PagesOf(const at::Tensor& rows);

/// Locks rows in memory, and reads those that are not there. Returning the memory unlocks them.
/// Throws Error (kRowsMemory) if the system refuses.
void LockRows(const at::Tensor& rows);

/// Sets the NUMA placement of anonymous memory that has not been written to: "interleave" or
/// "local". Throws Error (kRowsMemory) if the system refuses.
void PlaceRows(void* start, std::int64_t num_bytes, const std::string& numa);

}  // namespace recsys

#endif  // RECSYS_MODEL_ROWS_ROWS_MEMORY_H_
