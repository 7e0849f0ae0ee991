#ifndef RECSYS_ENGINE_RPC_NET_TLS_H_
#define RECSYS_ENGINE_RPC_NET_TLS_H_

#include <memory>
#include <mutex>

#include "engine/settings/settings.h"

struct ssl_ctx_st;

namespace recsys {

/// Checks that the certificate is PEM with a matching key without a password, and that `client_ca`
/// contains certificates. Throws Error (kConfig).
void CheckTls(const TlsPem& pem);

/// Returns OpenSSL's server context with the material. Throws as CheckTls.
std::shared_ptr<ssl_ctx_st> MakeServerContext(const TlsPem& pem);

/// The TLS material of a port, which may be replaced while it listens. Thread-safe: handshakes read
/// it from any thread.
class TlsStore {
 public:
  /// Throws as CheckTls.
  explicit TlsStore(TlsPem pem);

  /// Throws as CheckTls; then the old material is kept. Whether clients need a certificate cannot
  /// change: throws Error (kConfig).
  void Set(TlsPem pem);
  /// Returns the material for a new handshake; the same pointer until Set.
  std::shared_ptr<const TlsPem> pem() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const TlsPem> pem_;
};

}  // namespace recsys

#endif  // RECSYS_ENGINE_RPC_NET_TLS_H_
