#ifndef RECSYS_TESTS_CONFIG_FOLDER_H_
#define RECSYS_TESTS_CONFIG_FOLDER_H_

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "recsys/error.h"

namespace recsys {

/// A folder of a test's own, gone with it.
class Folder {
 public:
  Folder() {
    std::random_device random;
    path_ = std::filesystem::temp_directory_path() /
            ("recsys_config_" + std::to_string(random()) + std::to_string(random()));
    std::filesystem::create_directory(path_);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path(const std::string& name = "") const { return (path_ / name).string(); }

  /// Writes a file; returns its path.
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0644) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    chmod(path(name).c_str(), mode);
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

/// The text of the Error that `call` throws; "nothing was thrown" where it throws none.
template <typename Call>
std::string ErrorOf(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace recsys

#endif  // RECSYS_TESTS_CONFIG_FOLDER_H_
