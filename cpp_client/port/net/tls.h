#ifndef RECSYS_PORT_NET_TLS_H_
#define RECSYS_PORT_NET_TLS_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>

struct ssl_ctx_st;

namespace recsys {

/// Certificates and key as PEM text.
struct TlsPem {
  std::string certificate;
  std::string key;
  /// CA certificates for clients; if given, clients must present a certificate (mTLS).
  std::optional<std::string> client_ca;
};

/// The TLS material of a port, which may be replaced while it listens. Thread-safe.
class TlsStore {
 public:
  /// Throws Error (kConfig) unless the certificate is PEM with a matching key without a password,
  /// and `client_ca` contains certificates.
  explicit TlsStore(const TlsPem& pem);

  /// Throws like the constructor; then the old material is kept. Whether clients need a certificate
  /// cannot change: throws Error (kConfig).
  void Set(const TlsPem& pem);
  /// Returns OpenSSL's context for a new handshake.
  std::shared_ptr<ssl_ctx_st> context() const;

 private:
  const bool needs_client_certificate_;
  mutable std::mutex mutex_;
  std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace recsys

#endif  // RECSYS_PORT_NET_TLS_H_
