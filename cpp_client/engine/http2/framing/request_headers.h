#ifndef RECSYS_ENGINE_HTTP2_FRAMING_REQUEST_HEADERS_H_
#define RECSYS_ENGINE_HTTP2_FRAMING_REQUEST_HEADERS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/http2/framing/message_reader.h"

namespace recsys::http2 {

/// What opens a call: its path, timeout, encoding and metadata. Names are in lower case and values
/// free of control characters (nghttp2 sees to both).
class RequestHeaders {
 public:
  /// Takes one field. False once all of them take more than `max_bytes`.
  bool Add(std::string_view name, std::string_view value, std::size_t max_bytes);

  std::string_view path() const { return Text(path_); }
  /// Relative; infinite for none.
  double timeout_s() const { return timeout_s_; }
  MessageEncoding encoding() const { return encoding_; }
  /// Whether this is a gRPC call at all: POST, and a content type of gRPC's.
  bool is_grpc() const { return is_post_ && is_grpc_; }
  /// As HTTP/2 counts them, also beyond the bound.
  std::size_t num_bytes() const { return num_bytes_; }
  /// Why the call ends before its method runs; OK where it does not.
  const Status& failure() const { return failure_; }

  /// The first value of a key, empty for none. What gRPC needs for itself is left out, as in
  /// gRPC's own API. Values of keys that end in -bin are decoded.
  std::string_view Metadata(std::string_view key) const;
  int Count(std::string_view key) const;

  /// Calls `visit(name, value)` for each field of the metadata, in order.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const Field& field : fields_) visit(Text(field.name), Text(field.value));
  }

 private:
  /// A piece of `text_`.
  struct Piece {
    std::size_t at = 0;
    std::size_t size = 0;
  };
  struct Field {
    Piece name;
    Piece value;
  };

  std::string_view Text(Piece piece) const {
    return std::string_view(text_).substr(piece.at, piece.size);
  }
  Piece Keep(std::string_view text);
  void AddPseudo(std::string_view name, std::string_view value);
  /// Whether the field is gRPC's own.
  bool TakeOwn(std::string_view name, std::string_view value);
  void AddBinary(std::string_view name, std::string_view values);
  void Refuse(StatusCode code, std::string text);

  std::string text_;
  std::vector<Field> fields_;
  Piece path_;
  std::size_t num_bytes_ = 0;
  double timeout_s_;
  MessageEncoding encoding_ = MessageEncoding::kIdentity;
  bool is_post_ = false;
  bool is_grpc_ = false;
  Status failure_;

 public:
  RequestHeaders();
};

/// Seconds of a grpc-timeout ("100m"); negative where it is none.
double ParseTimeout(std::string_view text);
/// Decodes base64 with or without padding; false where it is none.
bool DecodeBase64(std::string_view text, std::string* decoded);
/// A grpc-message: all but printable ASCII, and '%', as %XX.
std::string PercentEncoded(std::string_view text);

}  // namespace recsys::http2

#endif  // RECSYS_ENGINE_HTTP2_FRAMING_REQUEST_HEADERS_H_
