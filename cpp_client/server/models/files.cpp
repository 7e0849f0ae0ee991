#include "server/models/files.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/text.h"

namespace recsys {
namespace {

constexpr std::int64_t kNsPerSecond = 1'000'000'000;

struct FolderCloser {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

bool IsAbsent(int number) {
  return number == ENOENT || number == ENOTDIR || number == EBADF || number == ELOOP;
}

// What a path leads to; none where it leads nowhere.
std::optional<struct stat> StatOf(const std::string& path) {
  struct stat found = {};
  if (::stat(path.c_str(), &found) == 0) return found;
  if (IsAbsent(errno)) return std::nullopt;
  throw FileError(errno, path);
}

// Appends the mark of a regular file.
void Mark(const std::string& path, const std::string& name, Fingerprint* marks) {
  struct stat found = {};
  if (::stat(path.c_str(), &found) != 0) throw FileError(errno, path);
  if (!S_ISREG(found.st_mode)) return;
  const std::int64_t modified_ns =
      static_cast<std::int64_t>(found.st_mtim.tv_sec) * kNsPerSecond + found.st_mtim.tv_nsec;
  marks->push_back({name, found.st_size, modified_ns, found.st_ino});
}

}  // namespace

bool operator==(const FileMark& a, const FileMark& b) {
  return a.name == b.name && a.num_bytes == b.num_bytes && a.modified_ns == b.modified_ns &&
         a.inode == b.inode;
}

Fingerprint FingerprintOf(const std::string& path) {
  Fingerprint marks;
  try {
    if (IsFolder(path)) {
      for (const std::string& name : ListFolder(path)) Mark(path + "/" + name, name, &marks);
    } else {
      Mark(path, std::filesystem::path(path).filename().string(), &marks);
    }
  } catch (const std::system_error&) {
    return {};
  }
  return marks;
}

bool IsFile(const std::string& path) {
  const auto found = StatOf(path);
  return found && S_ISREG(found->st_mode);
}

bool IsFolder(const std::string& path) {
  const auto found = StatOf(path);
  return found && S_ISDIR(found->st_mode);
}

std::vector<std::string> ListFolder(const std::string& path) {
  const std::unique_ptr<DIR, FolderCloser> folder(::opendir(path.c_str()));
  if (!folder) throw FileError(errno, path);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  if (errno != 0) throw FileError(errno, path);
  std::sort(names.begin(), names.end());
  return names;
}

std::string Resolved(const std::string& path) {
  std::error_code failed;
  const std::filesystem::path absolute = std::filesystem::absolute(path, failed);
  if (failed) return "";
  std::string resolved = std::filesystem::weakly_canonical(absolute, failed).string();
  if (failed) return "";
  while (resolved.size() > 1 && resolved.back() == '/') resolved.pop_back();
  return resolved;
}

bool IsWithin(const std::string& path, const std::string& folder) {
  if (path.empty() || folder.empty()) return false;
  if (path == folder || folder == "/") return true;
  return path.size() > folder.size() && path.compare(0, folder.size(), folder) == 0 &&
         path[folder.size()] == '/';
}

const char* OsErrorName(const std::error_code& code) {
  switch (code.value()) {
    case ENOENT:
      return "FileNotFoundError";
    case EACCES:
    case EPERM:
      return "PermissionError";
    case ENOTDIR:
      return "NotADirectoryError";
    case EISDIR:
      return "IsADirectoryError";
    case EEXIST:
      return "FileExistsError";
    case EINTR:
      return "InterruptedError";
    case ETIMEDOUT:
      return "TimeoutError";
    default:
      return "OSError";
  }
}

FileError::FileError(int number, const std::string& path)
    : std::system_error(number, std::generic_category()),
      text_("[Errno " + std::to_string(number) + "] " + code().message() + ": " + Repr(path)) {}

}  // namespace recsys
