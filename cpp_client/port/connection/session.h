#ifndef RECSYS_PORT_CONNECTION_SESSION_H_
#define RECSYS_PORT_CONNECTION_SESSION_H_

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "port/limits.h"

namespace recsys::http2 {

/// nghttp2's callbacks, which call the session's connection.
struct SessionCallbacks {
  static const nghttp2_session_callbacks* Get();
};

/// Options of every server session.
const nghttp2_option* SessionOptions();

/// Submits the server's first SETTINGS. Returns false if out of memory.
bool SubmitSettings(nghttp2_session* session, const ConnectionLimits& limits);

/// What a client may initially send per call (HTTP/2's default window).
constexpr std::size_t kStreamWindowBytes = 65535;

/// The PING whose reply shows that a client has read the first GOAWAY.
constexpr std::size_t kPingBytes = 8;
const std::uint8_t* DrainPing();

std::string GoawayFrame(int last_stream_id, std::uint32_t code, std::string_view text);

}  // namespace recsys::http2

#endif  // RECSYS_PORT_CONNECTION_SESSION_H_
