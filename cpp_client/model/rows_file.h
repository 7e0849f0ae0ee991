#ifndef RECSYS_MODEL_ROWS_FILE_H_
#define RECSYS_MODEL_ROWS_FILE_H_

#include <torch/types.h>

#include <cstdint>
#include <string>

#include "recsys/error.h"

namespace recsys {

/// The file that an artifact's rows lie in: mapped, or copied, and watched (recsys/rows_file.py).
/// Thread-safe.
class RowsFile {
 public:
  /// Throws Error (kMissingPart) where it cannot be opened.
  explicit RowsFile(const std::string& path);
  ~RowsFile();
  RowsFile(const RowsFile&) = delete;
  RowsFile& operator=(const RowsFile&) = delete;

  /// The first bytes as uint8, mapped privately: pages are shared with others until they are
  /// written to. Throws Error: kPartSize (the file is shorter by now), kInternal (the system
  /// refuses).
  at::Tensor Mapped(std::int64_t num_bytes) const;
  /// The first bytes in memory of their own. Throws Error (kPartSize) where the file is shorter by
  /// now.
  at::Tensor Copied(std::int64_t num_bytes) const;
  /// Throws Error (kChecksum) where somebody has written into the file since it was opened: what is
  /// mapped must not be read any more. Costs less than a microsecond.
  void Check() const;

 private:
  struct State {
    std::int64_t size, seconds, nanoseconds;
  };
  State PresentState() const;
  Error EndsEarly(std::int64_t found, std::int64_t expected) const;

  std::string name_;
  int file_;
  State state_;
};

}  // namespace recsys

#endif  // RECSYS_MODEL_ROWS_FILE_H_
