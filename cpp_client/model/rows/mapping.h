#ifndef RECSYS_MODEL_ROWS_MAPPING_H_
#define RECSYS_MODEL_ROWS_MAPPING_H_

// Mappings of raw IDs to rows of a loaded model (recsys/artifact/mappings.py).

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "format/manifest/manifest.h"
#include "format/slots.h"

namespace recsys {

/// A managed table of a loaded mapping.
struct LoadedTable {
  std::string name;
  std::int64_t num_rows = 0;
  /// [Q, 64] uint8: its buckets, a view.
  at::Tensor buckets;
  /// Which rows a raw ID owns; kept up to date by those who write the buckets.
  std::vector<bool> is_owned;

  Slots slots() const {
    return {static_cast<const std::int64_t*>(buckets.const_data_ptr()), buckets.size(0), num_rows};
  }
};

/// A mapping of a loaded model.
struct LoadedMapping {
  /// The path of the tensor in the graphs.
  std::string path;
  /// [Q, kBucketNumbers] int64 in host memory, which graphs and programs read.
  at::Tensor slots;
  std::vector<LoadedTable> tables;
};

/// Returns a mapping in memory of its own. `bytes`: the part, whose size and digest were compared.
/// Throws Error (kManifest) if it holds no mapping.
LoadedMapping LoadMapping(const MappingInfo& info, const std::string& bytes);

/// Returns the buckets by their paths in the graphs.
std::map<std::string, at::Tensor> SlotsByPath(const std::vector<LoadedMapping>& mappings);

}  // namespace recsys

#endif  // RECSYS_MODEL_ROWS_MAPPING_H_
