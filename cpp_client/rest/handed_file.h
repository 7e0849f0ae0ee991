#ifndef RECSYS_REST_HANDED_FILE_H_
#define RECSYS_REST_HANDED_FILE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "port/net/listening.h"

namespace recsys {

/// The file of a connection that its port hands over, and goes on to count until it is closed.
class HandedFile {
 public:
  HandedFile(FileHandle file, std::shared_ptr<std::atomic<std::int64_t>> num_connections)
      : file_(std::move(file)), num_connections_(std::move(num_connections)) {
    ++*num_connections_;
  }
  /// Closes it, unless it was taken.
  ~HandedFile() {
    if (file_.is_open()) --*num_connections_;
  }
  HandedFile(const HandedFile&) = delete;
  HandedFile& operator=(const HandedFile&) = delete;

  /// Whoever takes it tells the port when it is closed (RestPort::Released).
  int Take() { return file_.Release(); }

 private:
  FileHandle file_;
  const std::shared_ptr<std::atomic<std::int64_t>> num_connections_;
};

}  // namespace recsys

#endif  // RECSYS_REST_HANDED_FILE_H_
