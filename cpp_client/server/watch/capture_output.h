#ifndef RECSYS_SERVER_WATCH_CAPTURE_OUTPUT_H_
#define RECSYS_SERVER_WATCH_CAPTURE_OUTPUT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace recsys {

/// A new file that its owner alone can read (captured requests say what people did), and that grows
/// by whole pieces. Belongs to one thread at a time.
class CaptureOutput {
 public:
  /// An old file of that name is replaced. Throws std::system_error: it cannot be made, or
  /// something that is no file has its name, and stays as it is.
  explicit CaptureOutput(const std::string& path);
  ~CaptureOutput();
  CaptureOutput(const CaptureOutput&) = delete;
  CaptureOutput& operator=(const CaptureOutput&) = delete;

  /// All of `data`, or nothing of it: then false, with the system's number in `error`.
  bool Append(std::string_view data, int* error);
  std::uint64_t size() const { return size_; }

 private:
  int file_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_WATCH_CAPTURE_OUTPUT_H_
