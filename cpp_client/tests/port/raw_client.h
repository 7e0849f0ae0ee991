#ifndef RECSYS_TESTS_PORT_RAW_CLIENT_H_
#define RECSYS_TESTS_PORT_RAW_CLIENT_H_

// HTTP/2 by hand: what no client library would send.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "port/net/listening.h"

namespace recsys::http2 {

constexpr int kPatienceS = 60;

enum FrameType : std::uint8_t {
  kData,
  kHeaders,
  kPriority,
  kReset,
  kSettings,
  kPush,
  kPing,
  kGoaway,
  kWindow,
  kContinuation
};
constexpr std::uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;
constexpr std::uint32_t kEnhanceYourCalm = 11;

inline std::string Number(std::uint32_t value, int num_bytes = 4) {
  std::string text;
  for (int i = num_bytes - 1; i >= 0; --i) {
    text.push_back(static_cast<char>(value >> 8 * i & 0xff));
  }
  return text;
}

inline std::string Frame(FrameType type, std::uint8_t flags, std::uint32_t stream,
                         const std::string& payload = {}) {
  return Number(static_cast<std::uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + Number(stream) + payload;
}

inline std::string Hello() {
  return std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + Frame(kSettings, 0, 0);
}

/// A header field of less than 127 bytes, in HPACK's plainest form.
inline std::string Field(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

inline std::string CallFields(const std::string& path) {
  return Field(":method", "POST") + Field(":scheme", "http") + Field(":path", path) +
         Field(":authority", "localhost") + Field("te", "trailers") +
         Field("content-type", "application/grpc");
}

inline std::string Opened(const std::string& path, std::uint32_t stream = 1,
                          const std::string& more = {}) {
  return Frame(kHeaders, kEndHeaders, stream, CallFields(path) + more);
}

inline std::string MessageFrame(const std::string& data, std::uint32_t stream = 1,
                                std::uint8_t flags = kEndStream) {
  return Frame(kData, flags, stream,
               std::string(1, '\0') + Number(static_cast<std::uint32_t>(data.size())) + data);
}

struct GotFrame {
  FrameType type = kData;
  std::uint8_t flags = 0;
  std::uint32_t stream = 0;
  std::string payload;
  /// The error code of a GOAWAY.
  std::uint32_t ErrorCode() const {
    std::uint32_t code = 0;
    for (std::size_t i = 4; i < 8 && i < payload.size(); ++i) {
      code = code << 8 | static_cast<unsigned char>(payload[i]);
    }
    return code;
  }
};

class RawClient {
 public:
  explicit RawClient(int port) : file_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval patience = {};
    patience.tv_sec = kPatienceS;
    setsockopt(file_.number(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    is_open_ = connect(file_.number(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }

  /// False where the server has closed the connection.
  bool Send(const std::string& data) {
    std::size_t at = 0;
    while (at < data.size()) {
      const ssize_t sent = send(file_.number(), data.data() + at, data.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<std::size_t>(sent);
    }
    return true;
  }
  /// None where the connection ends; `is_open` tells whether it did.
  std::optional<GotFrame> Next() {
    constexpr std::size_t kHeadBytes = 9;
    if (!Fill(kHeadBytes)) return std::nullopt;
    std::size_t size = 0;
    for (std::size_t i = 0; i < 3; ++i) size = size << 8 | static_cast<unsigned char>(data_[i]);
    if (!Fill(kHeadBytes + size)) return std::nullopt;
    GotFrame frame;
    frame.type = static_cast<FrameType>(data_[3]);
    frame.flags = static_cast<std::uint8_t>(data_[4]);
    for (std::size_t i = 5; i < kHeadBytes; ++i) {
      frame.stream = frame.stream << 8 | static_cast<unsigned char>(data_[i]);
    }
    frame.payload = data_.substr(kHeadBytes, size);
    data_.erase(0, kHeadBytes + size);
    return frame;
  }
  /// The next frame of a type; none where the connection ends before.
  std::optional<GotFrame> Await(FrameType type) {
    while (std::optional<GotFrame> frame = Next()) {
      if (frame->type == type) return frame;
    }
    return std::nullopt;
  }
  bool is_open() const { return is_open_; }

 private:
  bool Fill(std::size_t size) {
    char piece[1 << 14];
    while (data_.size() < size) {
      const ssize_t got = recv(file_.number(), piece, sizeof piece, 0);
      if (got <= 0) {
        is_open_ = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
        return false;
      }
      data_.append(piece, static_cast<std::size_t>(got));
    }
    return true;
  }

  FileHandle file_;
  std::string data_;
  bool is_open_ = false;
};

}  // namespace recsys::http2

#endif  // RECSYS_TESTS_PORT_RAW_CLIENT_H_
