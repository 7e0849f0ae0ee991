#ifndef RECSYS_FORMAT_DELTA_FILE_H_
#define RECSYS_FORMAT_DELTA_FILE_H_

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "format/delta_header.h"
#include "format/slots.h"

namespace recsys {

/// One table's changes: ascending row numbers, and those rows at alignment 1, all columns.
struct DeltaRows {
  std::int64_t num_rows = 0;
  std::shared_ptr<std::int64_t[]> numbers;
  std::shared_ptr<unsigned char[]> rows;
};

/// A delta being read (recsys/artifact/delta/file.py has the layout). Not thread-safe.
class DeltaFile {
 public:
  /// Opens the file and checks its header. Throws Error; its kind says what is wrong.
  explicit DeltaFile(const std::string& path);

  const DeltaHeader& header() const { return header_; }
  /// The state that it leaves, twelve hexadecimal digits: its content-based name; of a compacted
  /// chain, that of the last delta.
  const std::string& digest() const { return digest_; }

  /// Throws Error: kChecksum, kPartSize if the file was truncated since it was opened, kManifest if
  /// the numbers are not ascending rows of the table or a row is not finite.
  DeltaRows Read(const TableDelta& table);

  /// Returns the change of a managed table's mapping, after all checks that need no mapping.
  /// Throws Error: kChecksum, kPartSize, or kManifest if raw IDs do not ascend, one is in both
  /// lists, or rows are not rows of the table, each once.
  MappingChange ReadMapping(const MappingDelta& mapping);

  /// Reads the numbers of a dense weight. Throws Error: kChecksum, kPartSize, or kManifest if one
  /// is not finite.
  void ReadDense(const DenseDelta& weight, void* to);

 private:
  std::string ReadHeader(std::int64_t* start);
  void ReadSection(const DeltaSection& section, const std::string& what, char* to);

  std::string name_;
  std::ifstream file_;
  std::string digest_;
  DeltaHeader header_;
};

}  // namespace recsys

#endif  // RECSYS_FORMAT_DELTA_FILE_H_
