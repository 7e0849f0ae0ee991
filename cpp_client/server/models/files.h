#ifndef RECSYS_SERVER_MODELS_FILES_H_
#define RECSYS_SERVER_MODELS_FILES_H_

// Looking at a folder that others write to meanwhile. What cannot be looked at for want of rights
// or by a fault of the disk is a std::system_error; what is not there is not there.

#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

namespace recsys {

/// One file, as it was last written.
struct FileMark {
  std::string name;
  std::int64_t num_bytes = 0;
  std::int64_t modified_ns = 0;
  std::uint64_t inode = 0;
};

bool operator==(const FileMark& a, const FileMark& b);

/// What changes when an artifact's files do.
using Fingerprint = std::vector<FileMark>;

/// Of an artifact's folder, or of its one file; empty where there is none.
Fingerprint FingerprintOf(const std::string& path);

/// Follow symbolic links. Throw std::system_error.
bool IsFile(const std::string& path);
bool IsFolder(const std::string& path);

/// Names in a folder, sorted, without . and ... Throws std::system_error, its text as Python's
/// OSError.
std::vector<std::string> ListFolder(const std::string& path);

/// A path without symbolic links, dots and doubled slashes; parts that do not exist are taken as
/// they stand. Empty where links go in circles.
std::string Resolved(const std::string& path);

/// Whether a resolved path is the folder or lies in it.
bool IsWithin(const std::string& path, const std::string& folder);

/// Python's name for what went wrong with a file: FileNotFoundError and so on.
const char* OsErrorName(const std::error_code& code);

/// An error about a file, as Python prints it: "[Errno 2] No such file or directory: 'models'".
class FileError : public std::system_error {
 public:
  FileError(int number, const std::string& path);
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_MODELS_FILES_H_
