#ifndef RECSYS_SERVER_OBSERVE_CAPTURE_FILE_H_
#define RECSYS_SERVER_OBSERVE_CAPTURE_FILE_H_

// The file that captured requests lie in (serve/capture_file.py; docs/capture.md has its layout
// byte by byte).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "recsys/request.h"

namespace recsys {

/// One request of a capture.
struct CapturedRequest {
  /// When it came, in microseconds since the capture began.
  std::uint64_t time_us = 0;
  /// Who answered it.
  std::string model;
  std::string version;
  /// A serialized recsys.v1.PredictRequest without model, version and request ID.
  std::string data;
};

/// The file's first bytes. `began_us`: microseconds since the epoch at which the records' times
/// begin.
std::string CaptureHeader(std::uint64_t began_us);

/// One request as the file has it.
std::string CaptureRecord(const CapturedRequest& request);

/// A request of any protocol as a recsys.v1.PredictRequest; who sent it and for whom is left out.
std::string SerializedForCapture(const RawRequest& raw);

/// The bytes of a request's inputs.
std::size_t NumBytesOf(const RawRequest& raw);

/// Goes through the requests of a capture, once; one record is in memory at a time. Belongs to one
/// thread.
class CaptureReader {
 public:
  /// Throws Error (kCapture): the file is missing, not a capture, of a newer version, or its header
  /// is damaged.
  explicit CaptureReader(const std::string& path);
  ~CaptureReader();
  CaptureReader(const CaptureReader&) = delete;
  CaptureReader& operator=(const CaptureReader&) = delete;

  /// The next request; none at the end, or where only a part of a record is left, as a writer that
  /// was stopped leaves it. Throws Error (kCapture) at the first damaged record.
  std::optional<CapturedRequest> Next();

  /// Microseconds since the epoch at which the records' times begin.
  std::uint64_t began_us() const { return began_us_; }
  /// Bytes of an incomplete last record, once Next has found no further one.
  std::uint64_t num_cut_bytes() const { return num_cut_bytes_; }

 private:
  void ReadHeader(const std::string& name);
  std::string ReadAt(std::uint64_t start, std::size_t num_bytes) const;

  int file_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t at_ = 0;
  std::uint64_t number_ = 0;
  std::uint64_t began_us_ = 0;
  std::uint64_t num_cut_bytes_ = 0;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_OBSERVE_CAPTURE_FILE_H_
