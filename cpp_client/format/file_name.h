#ifndef RECSYS_FORMAT_FILE_NAME_H_
#define RECSYS_FORMAT_FILE_NAME_H_

#include <filesystem>
#include <string>

namespace recsys {

/// Returns the last part of a path, as Python's Path(path).name does: messages show only that.
inline std::string NameOfPath(const std::string& path) {
  std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  if (!normal.has_filename()) normal = normal.parent_path();
  return normal.filename() == "." ? "" : normal.filename().string();
}

}  // namespace recsys

#endif  // RECSYS_FORMAT_FILE_NAME_H_
