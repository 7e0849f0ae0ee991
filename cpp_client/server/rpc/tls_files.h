#ifndef RECSYS_SERVER_RPC_TLS_FILES_H_
#define RECSYS_SERVER_RPC_TLS_FILES_H_

#include <openssl/ssl.h>

#include <memory>
#include <mutex>

#include "config/settings.h"
#include "config/tls_files.h"
#include "server/rpc/file_stamp.h"

namespace recsys {

/// A context of an HTTPS server with these: TLS 1.2 at least, clients' certificates where there is
/// an authority of theirs (then TLS 1.3 alone), and no resumed sessions, which would show no
/// certificate. Throws Error (kConfig) as UseTls does.
std::shared_ptr<SSL_CTX> MakeSslContext(const TlsSettings& settings, const TlsMaterial& material);

/// The files of TLS settings as they are now, or, where they cannot be used any more, as they last
/// could: the log says so once. Thread-safe: handshakes ask from any thread.
class TlsFiles {
 public:
  /// Throws Error (kConfig): they cannot be used from the start.
  explicit TlsFiles(TlsSettings settings);

  /// For a handshake that begins now; the same pointer as long as nothing has changed.
  std::shared_ptr<const TlsMaterial> material();
  /// The same as a context of OpenSSL's.
  std::shared_ptr<SSL_CTX> context();

 private:
  void Refresh();

  const TlsSettings settings_;
  std::mutex mutex_;
  FileStamp stamp_;
  std::shared_ptr<const TlsMaterial> material_;
  std::shared_ptr<SSL_CTX> context_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_TLS_FILES_H_
