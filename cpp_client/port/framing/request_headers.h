#ifndef RECSYS_PORT_FRAMING_REQUEST_HEADERS_H_
#define RECSYS_PORT_FRAMING_REQUEST_HEADERS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "port/framing/message_reader.h"

namespace recsys::http2 {

/// The request headers of a call: path, timeout, encoding and metadata. Names are in lower case and
/// values free of control characters (nghttp2 ensures both).
class RequestHeaders {
 public:
  /// Adds one field. Returns false once all fields together exceed `max_bytes`.
  bool Add(std::string_view name, std::string_view value, std::size_t max_bytes);

  std::string_view path() const { return Text(path_); }
  /// Relative; infinite for none.
  double timeout_s() const { return timeout_s_; }
  MessageEncoding encoding() const { return encoding_; }
  /// Whether this is a gRPC call: POST, with one of gRPC's content types.
  bool is_grpc() const { return is_post_ && is_grpc_; }
  /// Size as HTTP/2 counts it, even above the bound.
  std::size_t num_bytes() const { return num_bytes_; }
  /// Memory for the fields that are kept.
  std::size_t memory_bytes() const { return text_.capacity() + fields_.capacity() * sizeof(Field); }
  /// Why the call ends before its method runs; OK if it does not.
  const Status& failure() const { return failure_; }

  /// Returns the first value of a key, empty for none. gRPC's own fields are excluded, as in gRPC's
  /// API. Values of keys that end in -bin are decoded.
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
  /// Handles gRPC's own fields; returns whether this is one.
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

/// Returns the seconds of a grpc-timeout ("100m"); negative if malformed.
double ParseTimeout(std::string_view text);
/// Decodes base64 with or without padding; returns false if malformed.
bool DecodeBase64(std::string_view text, std::string* decoded);
/// Encodes a grpc-message: all but printable ASCII, and '%', as %XX.
std::string PercentEncoded(std::string_view text);

}  // namespace recsys::http2

#endif  // RECSYS_PORT_FRAMING_REQUEST_HEADERS_H_
