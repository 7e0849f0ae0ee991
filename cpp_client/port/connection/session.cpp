#include "port/connection/session.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "port/connection/connection.h"

namespace recsys::http2 {
namespace {

// Total a connection's calls may send before it is read: for networks with long round trips.
constexpr int kConnectionWindowBytes = 4 << 20;
// Effectively unlimited: the port's own bound on resets applies.
constexpr std::uint64_t kManyResets = 1 << 30;

Connection& Of(void* connection) { return *static_cast<Connection*>(connection); }

std::string_view View(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

std::string BigEndian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(value >> shift & 0xff));
  }
  return bytes;
}

struct DeleteCallbacks {
  void operator()(nghttp2_session_callbacks* callbacks) const {
    nghttp2_session_callbacks_del(callbacks);
  }
};
struct DeleteOptions {
  void operator()(nghttp2_option* options) const { nghttp2_option_del(options); }
};

}  // namespace

/// The functions called by nghttp2.
struct Callback {
  static int BeginFrame(nghttp2_session*, const nghttp2_frame_hd* head, void* connection) {
    return Of(connection).OnFrameHeader(*head);
  }
  static int BeginHeaders(nghttp2_session*, const nghttp2_frame* frame, void* connection) {
    if (frame->headers.cat == NGHTTP2_HCAT_REQUEST)
      Of(connection).OnHeadersBegin(frame->hd.stream_id);
    return 0;
  }
  static int Header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name,
                    std::size_t name_size, const std::uint8_t* value, std::size_t value_size,
                    std::uint8_t, void* connection) {
    return Of(connection)
        .OnHeader(frame->hd.stream_id, View(name, name_size), View(value, value_size));
  }
  static int Frame(nghttp2_session*, const nghttp2_frame* frame, void* connection) {
    Of(connection).OnFrame(*frame);
    return 0;
  }
  static int Data(nghttp2_session*, std::uint8_t, std::int32_t stream_id, const std::uint8_t* data,
                  std::size_t size, void* connection) {
    Of(connection).OnData(stream_id, View(data, size));
    return 0;
  }
  static int StreamClose(nghttp2_session*, std::int32_t stream_id, std::uint32_t code,
                         void* connection) {
    Of(connection).OnStreamClosed(stream_id, code);
    return 0;
  }
  static int FrameSent(nghttp2_session*, const nghttp2_frame* frame, void* connection) {
    return Of(connection).OnFrameSent(*frame);
  }
  static int SendData(nghttp2_session*, nghttp2_frame*, const std::uint8_t* head, std::size_t size,
                      nghttp2_data_source* source, void* connection) {
    Of(connection).SendData(*static_cast<WireCall*>(source->ptr), head, size);
    return 0;
  }
};

const nghttp2_session_callbacks* SessionCallbacks::Get() {
  static const std::unique_ptr<nghttp2_session_callbacks, DeleteCallbacks> callbacks = [] {
    nghttp2_session_callbacks* made = nullptr;
    if (nghttp2_session_callbacks_new(&made) != 0) throw std::bad_alloc();
    nghttp2_session_callbacks_set_on_begin_frame_callback(made, Callback::BeginFrame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(made, Callback::BeginHeaders);
    nghttp2_session_callbacks_set_on_header_callback(made, Callback::Header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(made, Callback::Frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(made, Callback::Data);
    nghttp2_session_callbacks_set_on_stream_close_callback(made, Callback::StreamClose);
    nghttp2_session_callbacks_set_on_frame_send_callback(made, Callback::FrameSent);
    nghttp2_session_callbacks_set_send_data_callback(made, Callback::SendData);
    return std::unique_ptr<nghttp2_session_callbacks, DeleteCallbacks>(made);
  }();
  return callbacks.get();
}

const nghttp2_option* SessionOptions() {
  static const std::unique_ptr<nghttp2_option, DeleteOptions> options = [] {
    nghttp2_option* made = nullptr;
    if (nghttp2_option_new(&made) != 0) throw std::bad_alloc();
    // Windows are enlarged as messages are taken, not as bytes are read.
    nghttp2_option_set_no_auto_window_update(made, 1);
    nghttp2_option_set_no_closed_streams(made, 1);
    nghttp2_option_set_stream_reset_rate_limit(made, kManyResets, kManyResets);
    return std::unique_ptr<nghttp2_option, DeleteOptions>(made);
  }();
  return options.get();
}

bool SubmitSettings(nghttp2_session* session, const ConnectionLimits& limits) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::int64_t streams =
      limits.max_concurrent_streams == 0 ? kMost : std::min(limits.max_concurrent_streams, kMost);
  const nghttp2_settings_entry entries[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, static_cast<std::uint32_t>(streams)},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE,
       static_cast<std::uint32_t>(std::min(limits.max_header_bytes, kMost))},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
  };
  return nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, entries, std::size(entries)) == 0 &&
         nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0,
                                               kConnectionWindowBytes) == 0;
}

const std::uint8_t* DrainPing() {
  static constexpr std::uint8_t kData[kPingBytes] = {'d', 'r', 'a', 'i', 'n', 'i', 'n', 'g'};
  return kData;
}

std::string GoawayFrame(int last_stream_id, std::uint32_t code, std::string_view text) {
  constexpr std::size_t kFixedBytes = 8;
  const auto size = static_cast<std::uint32_t>(kFixedBytes + text.size());
  // Length in three bytes, type, no flags, the connection as a whole.
  std::string frame = BigEndian(size << 8 | NGHTTP2_GOAWAY);
  frame.push_back('\0');
  frame += BigEndian(0) + BigEndian(static_cast<std::uint32_t>(last_stream_id)) + BigEndian(code);
  frame += text;
  return frame;
}

}  // namespace recsys::http2
