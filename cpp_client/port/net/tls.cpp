#include "port/net/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "recsys/error.h"

namespace recsys {
namespace {

struct FreeOpenSsl {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

using Bio = std::unique_ptr<BIO, FreeOpenSsl>;
using Certificate = std::unique_ptr<X509, FreeOpenSsl>;

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

/// Returns OpenSSL's last reason, such as "key values mismatch"; clears its queue.
std::string TakeReason() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's own
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "unknown" : reason;
}

Bio BioOf(const std::string& data) {
  const auto size = std::min<std::size_t>(data.size(), std::numeric_limits<int>::max());
  return Bio(BIO_new_mem_buf(data.data(), static_cast<int>(size)));
}

/// Whether OpenSSL reached the end of the data, as opposed to an error.
bool IsAtEnd() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's own
  const bool is_end =
      ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
  if (is_end) ERR_clear_error();
  return is_end;
}

/// Called by OpenSSL if a key has a password.
int NoPassword(char*, int, int, void* was_asked) {
  *static_cast<bool*>(was_asked) = true;
  return -1;
}

bool UseCertificates(SSL_CTX* context, const std::string& data) {
  const Bio bio = BioOf(data);
  const Certificate own(PEM_read_bio_X509_AUX(bio.get(), nullptr, nullptr, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context, own.get()) != 1) return false;
  while (true) {
    Certificate next(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (next == nullptr) return IsAtEnd();
    if (SSL_CTX_add0_chain_cert(context, next.get()) != 1) return false;
    static_cast<void>(next.release());  // The context owns it.
  }
}

bool UseKey(SSL_CTX* context, const std::string& data) {
  const Bio bio = BioOf(data);
  bool is_encrypted = false;
  const std::unique_ptr<EVP_PKEY, FreeOpenSsl> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, &is_encrypted));
  if (is_encrypted) {
    ERR_clear_error();
    Refuse("tls.key: got an encrypted key, expected one without a password");
  }
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

void UseAuthorities(SSL_CTX* context, const std::string& data) {
  const Bio bio = BioOf(data);
  for (int num_read = 0;; ++num_read) {
    const Certificate one(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (one == nullptr && num_read > 0 && IsAtEnd()) return;
    if (one != nullptr && X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get()) == 1) {
      continue;
    }
    Refuse("tls.client_ca: expected certificates in PEM (" + TakeReason() + ")");
  }
}

// HTTP/2's name in ALPN, preceded by its length.
constexpr unsigned char kProtocol[] = "\x02h2";

int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                   const unsigned char* offered, unsigned int offered_size, void*) {
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, chosen_size, kProtocol, sizeof kProtocol - 1, offered,
                            offered_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

/// Returns a context for HTTP/2 over TLS: at least version 1.2; client certificates if the material
/// names their authorities (then 1.3 only); no resumed sessions, which would present no
/// certificate.
std::shared_ptr<SSL_CTX> ContextOf(const TlsPem& pem) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), FreeOpenSsl());
  if (context == nullptr) throw Error(ErrorKind::kInternal, "tls: OpenSSL cannot create a context");
  if (!UseCertificates(context.get(), pem.certificate) || !UseKey(context.get(), pem.key)) {
    Refuse("tls.certificate, tls.key: expected a certificate in PEM and its own key (" +
           TakeReason() + ")");
  }
  if (pem.client_ca) {
    UseAuthorities(context.get(), *pem.client_ca);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  }
  SSL_CTX_set_min_proto_version(context.get(), pem.client_ca ? TLS1_3_VERSION : TLS1_2_VERSION);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(),
                      SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                      SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  return context;
}

}  // namespace

TlsStore::TlsStore(const TlsPem& pem)
    : needs_client_certificate_(pem.client_ca.has_value()), context_(ContextOf(pem)) {}

void TlsStore::Set(const TlsPem& pem) {
  std::shared_ptr<SSL_CTX> context = ContextOf(pem);
  if (pem.client_ca.has_value() != needs_client_certificate_) {
    Refuse("tls.client_ca: whether clients must show a certificate cannot change on an open port");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  context_ = std::move(context);
}

std::shared_ptr<SSL_CTX> TlsStore::context() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return context_;
}

}  // namespace recsys
