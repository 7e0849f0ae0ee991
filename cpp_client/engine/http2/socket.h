#ifndef RECSYS_ENGINE_HTTP2_SOCKET_H_
#define RECSYS_ENGINE_HTTP2_SOCKET_H_

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "engine/rpc/net/listening.h"
#include "engine/settings/settings.h"

namespace recsys::http2 {

/// A context for HTTP/2 over TLS: 1.2 at least, clients' certificates where the material names
/// their authorities (then 1.3 alone), no resumed sessions, which would show no certificate. Throws
/// Error (kConfig): the material cannot be used.
std::shared_ptr<SSL_CTX> MakeTlsContext(const TlsPem& pem);

/// How reading, writing or a handshake went, where no bytes moved.
enum class IoResult { kDone, kBlocked, kClosed };

/// An accepted, non-blocking connection, with or without TLS.
class Socket {
 public:
  /// `context` is null for plain text.
  Socket(FileHandle file, SSL_CTX* context);

  int number() const { return file_.number(); }
  /// To be called until it is done, before anything else.
  IoResult Handshake();
  /// Reads up to `size` bytes; `num_read` is above 0 where it is done.
  IoResult Read(char* data, std::size_t size, std::size_t* num_read);
  IoResult Write(std::string_view data, std::size_t* num_written);
  /// Whether bytes wait that the system does not tell of.
  bool has_pending() const { return ssl_ != nullptr && SSL_has_pending(ssl_.get()) != 0; }
  /// Says that nothing more will be written.
  void EndWriting();

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  IoResult ResultOf(int returned);

  FileHandle file_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
};

/// The client's address as gRPC writes it: "ipv4:127.0.0.1:1234", "ipv6:%5B::1%5D:1234"; empty
/// where it is gone.
std::string PeerOf(int file);

}  // namespace recsys::http2

#endif  // RECSYS_ENGINE_HTTP2_SOCKET_H_
