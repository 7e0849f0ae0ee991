#include "config/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "config/option.h"

namespace recsys {
namespace {

[[noreturn]] void Fail() { throw std::system_error(errno, std::generic_category()); }

}  // namespace

Descriptor::Descriptor(const std::string& path, int more_flags)
    : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | more_flags)) {
  if (descriptor_ < 0) Fail();
}

Descriptor::~Descriptor() { close(descriptor_); }

std::string Descriptor::Read(std::size_t max_bytes) const {
  std::string data;
  std::array<char, 1 << 14> buffer{};
  while (data.size() < max_bytes) {
    const ssize_t got =
        read(descriptor_, buffer.data(), std::min(buffer.size(), max_bytes - data.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Fail();
    if (got == 0) break;
    data.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return data;
}

std::string ReadWholeFile(const std::string& path) { return Descriptor(path).Read(); }

std::string FolderOf(const std::string& path) {
  std::string whole = path;
  if (path.substr(0, 1) != "/") whole = std::filesystem::current_path().string() + "/" + path;
  const std::string folder = std::filesystem::path(CleanPath(whole)).parent_path().string();
  return folder.empty() ? "/" : folder;
}

}  // namespace recsys
