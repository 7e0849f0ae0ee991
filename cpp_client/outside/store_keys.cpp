#include "outside/store_keys.h"

namespace recsys {

std::string KeyPrefix(const std::string& model, const std::string& digest) {
  return "recsys:" + model + ":" + digest;
}

std::string MetaKey(const std::string& prefix) { return prefix + ":about"; }

std::string StateField(const std::string& digest) { return "state:" + digest; }

std::string BlockPrefix(const std::string& prefix, const StoredBlock& block) {
  return prefix + ":{" + block.table + ":" + std::to_string(block.column_start) + ":" +
         std::to_string(block.row_start) + ":";
}

std::string OldKey(const std::string& block_prefix, std::int64_t row) {
  return block_prefix + std::to_string(row / kChunkRows) + "}:" + std::to_string(row);
}

}  // namespace recsys
