#include "server/watch/capture_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/text.h"

namespace recsys {
namespace {

/// What Python says of a file that cannot be made.
class FileError : public std::system_error {
 public:
  FileError(int number, std::string text)
      : std::system_error(number, std::generic_category()), text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

[[noreturn]] void ThrowSystemError(const std::string& path) {
  const int number = errno;
  throw FileError(number, "[Errno " + std::to_string(number) + "] " + std::strerror(number) + ": " +
                              Repr(path));
}

}  // namespace

CaptureOutput::CaptureOutput(const std::string& path) {
  struct stat about {};
  if (lstat(path.c_str(), &about) == 0) {
    if (!S_ISREG(about.st_mode)) {
      throw FileError(EEXIST,
                      "capture: " + path + " is not a file, and stays as it is; name another path");
    }
    if (unlink(path.c_str()) != 0) ThrowSystemError(path);
  } else if (errno != ENOENT) {
    ThrowSystemError(path);
  }
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file_ < 0) ThrowSystemError(path);
}

CaptureOutput::~CaptureOutput() { close(file_); }

bool CaptureOutput::Append(std::string_view data, int* error) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t written =
        pwrite(file_, data.data() + done, data.size() - done, static_cast<off_t>(size_ + done));
    if (written >= 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      *error = errno;
      // Readers forgive an incomplete last record; where it can go, it goes.
      [[maybe_unused]] const int cut = ftruncate(file_, static_cast<off_t>(size_));
      return false;
    }
  }
  size_ += data.size();
  return true;
}

}  // namespace recsys
