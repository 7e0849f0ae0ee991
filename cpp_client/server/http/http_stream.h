#ifndef RECSYS_SERVER_HTTP_HTTP_STREAM_H_
#define RECSYS_SERVER_HTTP_HTTP_STREAM_H_

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "server/rpc/listening.h"

namespace recsys {

/// A non-blocking connection's bytes, with TLS or without. Belongs to one thread, which has SIGPIPE
/// blocked.
class HttpStream {
 public:
  enum class Result {
    kOk,
    /// Later, when there is something to read, or room to write.
    kWantsRead,
    kWantsWrite,
    /// The other side says no more, or is gone, or broke TLS.
    kEnd,
  };

  /// `tls`: null for plain text.
  HttpStream(FileHandle file, const std::shared_ptr<SSL_CTX>& tls);

  /// The handshake; kOk at once for plain text.
  Result Begin();
  Result Read(char* data, std::size_t size, std::size_t* num_bytes);
  Result Write(std::string_view data, std::size_t* num_bytes);
  /// Says that nothing more will come from here.
  void EndWriting();
  /// Whether there is something to read that the socket does not show any more.
  bool has_pending() const { return tls_ != nullptr && SSL_pending(tls_.get()) > 0; }

  int file() const { return file_.number(); }

 private:
  struct Free {
    void operator()(SSL* tls) const { SSL_free(tls); }
  };

  Result ResultOf(int returned);

  FileHandle file_;
  std::unique_ptr<SSL, Free> tls_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_HTTP_STREAM_H_
