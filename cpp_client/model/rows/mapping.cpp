#include "model/rows/mapping.h"

#include <cstring>
#include <utility>

#include "base/text.h"
#include "recsys/error.h"

namespace recsys {

LoadedMapping LoadMapping(const MappingInfo& info, const std::string& bytes) {
  LoadedMapping mapping;
  mapping.path = info.path;
  mapping.slots = at::empty({info.num_buckets(), kBucketNumbers}, at::kLong);
  std::memcpy(mapping.slots.mutable_data_ptr(), bytes.data(), bytes.size());
  const at::Tensor buckets = mapping.slots.view(at::kByte);
  std::int64_t start = 0;
  for (const MappedTable& of : info.tables) {
    LoadedTable table;
    table.name = of.name;
    table.num_rows = of.num_rows;
    table.buckets = buckets.slice(0, start, start + of.num_buckets);
    start += of.num_buckets;
    const std::string fault = FaultIn(table.slots(), &table.is_owned);
    if (!fault.empty()) {
      throw Error(ErrorKind::kManifest,
                  "part " + Repr(info.part) + ": mapping of table " + Repr(of.name) + ": " + fault);
    }
    mapping.tables.push_back(std::move(table));
  }
  return mapping;
}

std::map<std::string, at::Tensor> SlotsByPath(const std::vector<LoadedMapping>& mappings) {
  std::map<std::string, at::Tensor> found;
  for (const LoadedMapping& mapping : mappings) found.emplace(mapping.path, mapping.slots);
  return found;
}

}  // namespace recsys
