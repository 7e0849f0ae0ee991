#ifndef RECSYS_PORT_NET_SOCKET_H_
#define RECSYS_PORT_NET_SOCKET_H_

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "port/net/listening.h"

namespace recsys::http2 {

/// The result of a read, write or handshake.
enum class IoResult { kDone, kBlocked, kClosed };

/// An accepted, non-blocking connection, with or without TLS.
class Socket {
 public:
  /// `context` is null for plain text.
  Socket(FileHandle file, SSL_CTX* context);

  int number() const { return file_.number(); }
  bool has_tls() const { return ssl_ != nullptr; }
  /// Call it until it is done, before anything else.
  IoResult Handshake();
  /// Reads up to `size` bytes; if done, `num_read` is above 0.
  IoResult Read(char* data, std::size_t size, std::size_t* num_read);
  IoResult Write(std::string_view data, std::size_t* num_written);
  /// Whether bytes are buffered, which the system does not report.
  bool has_pending() const { return ssl_ != nullptr && SSL_has_pending(ssl_.get()) != 0; }
  /// Gives the connection away; without TLS alone.
  FileHandle TakeFile() { return std::move(file_); }
  /// Signals the end of writing to the client.
  void EndWriting();

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  IoResult ResultOf(int returned);

  FileHandle file_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
};

/// Returns the client's address as gRPC writes it: "ipv4:127.0.0.1:1234", "ipv6:%5B::1%5D:1234";
/// empty if the connection is gone.
std::string PeerOf(int file);

}  // namespace recsys::http2

#endif  // RECSYS_PORT_NET_SOCKET_H_
