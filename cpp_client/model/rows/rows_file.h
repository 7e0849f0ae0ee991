#ifndef RECSYS_MODEL_ROWS_ROWS_FILE_H_
#define RECSYS_MODEL_ROWS_ROWS_FILE_H_

#include <torch/types.h>

#include <cstdint>
#include <string>

#include "recsys/error.h"
#include "recsys/model.h"

namespace recsys {

/// The file with an artifact's rows: mapped or copied, and watched for changes
/// (recsys/rows/file.py). Thread-safe.
class RowsFile {
 public:
  /// Throws Error (kMissingPart) if it cannot be opened.
  explicit RowsFile(const std::string& path);
  ~RowsFile();
  RowsFile(const RowsFile&) = delete;
  RowsFile& operator=(const RowsFile&) = delete;

  /// Returns the first bytes as uint8, held as the options say: mapped privately (pages are shared
  /// with other processes until they are written to) or copied. Throws Error: kPartSize if the file
  /// has become shorter, kRowsMemory if the system does not lock or place them, kInternal if it has
  /// no room.
  at::Tensor Held(std::int64_t num_bytes, const ModelOptions& options) const;
  /// Throws Error (kChecksum) if the file was modified since it was opened: mapped rows must not be
  /// read any more. Takes less than a microsecond.
  void Check() const;

 private:
  struct State {
    std::int64_t size, seconds, nanoseconds;
  };
  at::Tensor Mapped(std::int64_t num_bytes, bool random_access) const;
  at::Tensor Copied(std::int64_t num_bytes, const std::string& numa) const;
  State PresentState() const;
  Error EndsEarly(std::int64_t found, std::int64_t expected) const;

  std::string name_;
  int file_;
  State state_;
};

}  // namespace recsys

#endif  // RECSYS_MODEL_ROWS_ROWS_FILE_H_
