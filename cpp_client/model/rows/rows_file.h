#ifndef RECSYS_MODEL_ROWS_ROWS_FILE_H_
#define RECSYS_MODEL_ROWS_ROWS_FILE_H_

#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "recsys/error.h"
#include "recsys/model.h"

namespace recsys {

/// A part of a file, and its SHA-256 in hexadecimal digits.
struct FileDigest {
  std::int64_t begin, end;
  std::string sha256;
};

/// The file with an artifact's rows: mapped or copied, and watched for changes
/// (recsys/rows/file.py). Thread-safe.
class RowsFile {
 public:
  /// Throws Error (kMissingPart) if it cannot be opened.
  RowsFile(const std::string& path, std::vector<FileDigest> digests);
  ~RowsFile();
  RowsFile(const RowsFile&) = delete;
  RowsFile& operator=(const RowsFile&) = delete;

  /// Returns the first bytes as uint8, held as the options say: mapped privately (pages are shared
  /// with other processes until they are written to) or copied. Throws Error: kPartSize if the file
  /// has become shorter, kRowsMemory if the system does not lock or place them, kInternal if it has
  /// no room.
  at::Tensor Held(std::int64_t num_bytes, const ModelOptions& options) const;
  /// Throws Error (kChecksum) if the file holds something else than when it was opened: mapped rows
  /// must not be read now. Takes less than a microsecond if its time is the same; if it is another,
  /// the file is read once, while other callers wait, and its digests are compared.
  void Check();

 private:
  struct State {
    std::int64_t size, modified_ns;
    bool operator==(const State& other) const {
      return size == other.size && modified_ns == other.modified_ns;
    }
  };
  bool HoldsTheSame(const State& state) const;
  at::Tensor Mapped(std::int64_t num_bytes, bool random_access) const;
  at::Tensor Copied(std::int64_t num_bytes, const std::string& numa) const;
  State PresentState() const;
  Error EndsEarly(std::int64_t found, std::int64_t expected) const;

  std::string name_;
  int file_;
  std::vector<FileDigest> digests_;
  std::mutex mutex_;
  /// The time of the file as it was last found to hold the same, in nanoseconds.
  std::atomic<std::int64_t> known_ns_{0};
  std::int64_t size_;
  std::optional<State> spoiled_;
};

}  // namespace recsys

#endif  // RECSYS_MODEL_ROWS_ROWS_FILE_H_
