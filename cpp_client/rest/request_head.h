#ifndef RECSYS_REST_REQUEST_HEAD_H_
#define RECSYS_REST_REQUEST_HEAD_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "rest/json/infer_body.h"

namespace recsys {

/// Longer heads are left to Python, which bounds them.
constexpr std::size_t kMostHeadBytes = 8000;

/// The head of an HTTP/1.1 request that predicts; views into its bytes.
struct RequestHead {
  RestTarget target;
  /// Whether the body is Open Inference's.
  bool is_infer = false;
  std::size_t num_body_bytes = 0;
  /// Of the JSON before the binary tensors; not set for the whole body.
  std::optional<std::size_t> num_json_bytes;
  /// All header lines.
  std::string_view lines;
  /// Size of the head.
  std::size_t num_bytes = 0;
};

/// Whose turn it is after reading what has come of a request.
enum class HeadResult { kIncomplete, kNative, kPython };

/// Reads the head of a request. kPython: it is none that predicts, or has any of what HTTP allows
/// and few clients send (other versions, chunks, `Expect`, compression, an end of the connection,
/// parameters in the address), or what it does not allow.
HeadResult ReadRequestHead(std::string_view received, RequestHead* head);

/// Returns the first value of a header, empty if there is none. `name`: in lower case.
std::string_view HeaderOf(std::string_view lines, std::string_view name);

}  // namespace recsys

#endif  // RECSYS_REST_REQUEST_HEAD_H_
