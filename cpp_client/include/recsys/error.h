#ifndef RECSYS_ERROR_H_
#define RECSYS_ERROR_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace recsys {

/// What went wrong, as far as callers may tell it apart.
enum class ErrorKind {
  // Artifacts.
  kArtifactNotFound,
  kForeignFile,
  kManifest,
  kNewerFormat,
  kMissingPart,
  kPartSize,
  kChecksum,
  kTarget,
  kDelta,
  /// A library that the artifact's operators need is missing or does not fit.
  kLibrary,
  // Requests.
  kRequest,
  kRequestTooLarge,
  kBodyTooLarge,
  kModelNotFound,
  kNotReady,
  kModelChange,
  kNotAllowed,
  kQueueFull,
  kDraining,
  kDeadlineExpired,
  kExecution,
  // Settings, the files that they name, and the port.
  kConfig,
  kListen,
  /// A fault of this library; its text stays in the log.
  kInternal,
};

/// An error with a text for people: field, got, expected. The text of a request's error goes to the
/// client.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// The queue holds as much as it may; the client should wait `retry_after_ms` and try again.
class QueueFullError : public Error {
 public:
  QueueFullError(const std::string& text, std::int64_t retry_after_ms)
      : Error(ErrorKind::kQueueFull, text), retry_after_ms_(retry_after_ms) {}
  std::int64_t retry_after_ms() const { return retry_after_ms_; }

 private:
  std::int64_t retry_after_ms_;
};

/// The name without its k in lower case with underscores, such as "queue_full".
const char* KindName(ErrorKind kind);

/// Whether the error is one of an artifact's, or of the libraries that its operators need.
inline bool IsArtifactError(ErrorKind kind) { return kind <= ErrorKind::kLibrary; }

}  // namespace recsys

#endif  // RECSYS_ERROR_H_
