#ifndef RECSYS_CONFIG_DISK_H_
#define RECSYS_CONFIG_DISK_H_

#include <cstddef>
#include <string>

namespace recsys {

/// An open file, closed with it.
class Descriptor {
 public:
  /// Opens a file to be read. Throws std::system_error with errno.
  explicit Descriptor(const std::string& path, int more_flags = 0);
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();
  /// Its bytes to the end, or the first `max_bytes`. Throws std::system_error.
  std::string Read(std::size_t max_bytes = static_cast<std::size_t>(-1)) const;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

/// All bytes of a file. Throws std::system_error with errno where it cannot be read; a folder
/// cannot.
std::string ReadWholeFile(const std::string& path);

/// The folder that a file lies in, from the root on; symbolic links are left as they are.
std::string FolderOf(const std::string& path);

}  // namespace recsys

#endif  // RECSYS_CONFIG_DISK_H_
