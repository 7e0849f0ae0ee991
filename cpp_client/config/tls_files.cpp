#include "config/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "config/disk.h"
#include "config/value_text.h"
#include "recsys/error.h"

namespace recsys {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

using Bio = std::unique_ptr<BIO, Free>;
using Certificate = std::unique_ptr<X509, Free>;

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

/// OpenSSL's last reason, such as "key_values_mismatch"; its queue is empty then.
std::string TakeReason() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's own
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  std::string text = LowerCase(reason == nullptr ? "unknown" : reason);
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

Bio BioOf(const std::string& data) {
  const auto size = std::min<std::size_t>(data.size(), std::numeric_limits<int>::max());
  return Bio(BIO_new_mem_buf(data.data(), static_cast<int>(size)));
}

/// Whether OpenSSL found that there is nothing more to read, rather than something wrong.
bool IsAtEnd() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's own
  const bool is_end =
      ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
  if (is_end) ERR_clear_error();
  return is_end;
}

/// OpenSSL asks for a password: nobody has one.
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
    next.release();  // The context's now.
  }
}

bool UseKey(SSL_CTX* context, const std::string& path, const std::string& data) {
  const Bio bio = BioOf(data);
  bool is_encrypted = false;
  const std::unique_ptr<EVP_PKEY, Free> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassword, &is_encrypted));
  if (is_encrypted) {
    ERR_clear_error();
    Refuse("tls.key: " + Repr(path) + " is encrypted, expected a key without a password");
  }
  return key != nullptr && SSL_CTX_use_PrivateKey(context, key.get()) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

void UseAuthorities(SSL_CTX* context, const std::string& path, const std::string& data) {
  const Bio bio = BioOf(data);
  int num_read = 0;
  while (true) {
    const Certificate one(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (one == nullptr && num_read > 0 && IsAtEnd()) return;
    if (one == nullptr || X509_STORE_add_cert(SSL_CTX_get_cert_store(context), one.get()) != 1) {
      Refuse("tls.client_ca: got " + Repr(path) + ", expected certificates in PEM (" +
             TakeReason() + ")");
    }
    ++num_read;
  }
}

}  // namespace

std::string ReadSecurityFile(const std::string& key, const std::string& path) {
  try {
    return ReadWholeFile(path);
  } catch (const std::system_error& error) {
    Refuse(key + ": cannot read " + Repr(path) + ": " + std::strerror(error.code().value()));
  }
}

void UseTls(SSL_CTX* context, const TlsSettings& settings, const TlsMaterial& material) {
  ERR_clear_error();
  if (!UseCertificates(context, material.certificate) ||
      !UseKey(context, settings.key, material.key)) {
    Refuse("tls.certificate, tls.key: got " + Repr(settings.certificate) + " and " +
           Repr(settings.key) + ", expected a certificate in PEM and its own key (" + TakeReason() +
           ")");
  }
  if (!material.client_ca) return;
  UseAuthorities(context, settings.client_ca.value_or(""), *material.client_ca);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

TlsMaterial ReadTls(const TlsSettings& settings) {
  TlsMaterial material;
  material.certificate = ReadSecurityFile("tls.certificate", settings.certificate);
  material.key = ReadSecurityFile("tls.key", settings.key);
  if (settings.client_ca) {
    material.client_ca = ReadSecurityFile("tls.client_ca", *settings.client_ca);
  }
  const std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) throw Error(ErrorKind::kInternal, "tls: OpenSSL makes no context");
  UseTls(context.get(), settings, material);
  return material;
}

}  // namespace recsys
