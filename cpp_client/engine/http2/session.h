#ifndef RECSYS_ENGINE_HTTP2_SESSION_H_
#define RECSYS_ENGINE_HTTP2_SESSION_H_

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/settings/settings.h"

namespace recsys::http2 {

/// nghttp2's callbacks, which call the connection that the session belongs to.
struct SessionCallbacks {
  static const nghttp2_session_callbacks* Get();
};

/// How every session of a server is to behave.
const nghttp2_option* SessionOptions();

/// What the server says first. False where there is no memory.
bool SubmitSettings(nghttp2_session* session, const ConnectionLimits& limits);

/// What a client may send of one call before the server gives more room (HTTP/2's own default).
constexpr std::size_t kStreamWindowBytes = 65535;

/// The PING whose reply says that a client has read the first GOAWAY.
constexpr std::size_t kPingBytes = 8;
const std::uint8_t* DrainPing();

std::string GoawayFrame(int last_stream_id, std::uint32_t code, std::string_view text);

}  // namespace recsys::http2

#endif  // RECSYS_ENGINE_HTTP2_SESSION_H_
