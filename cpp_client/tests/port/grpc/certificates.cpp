#include "certificates.h"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <mutex>
#include <vector>

#include "base/log.h"

namespace recsys {
namespace {

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;
using Certificate = std::unique_ptr<X509, Free>;

constexpr long kHourS = 3600;

Key NewKey() { return Key(EVP_EC_gen("P-256")); }

void Extend(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Free> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value));
  X509_add_ext(certificate, extension.get(), -1);
}

Certificate Signed(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* signer,
                   bool is_authority) {
  static std::atomic<long> serial{1000};
  Certificate made(X509_new());
  X509_set_version(made.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -kHourS);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), 24 * kHourS);
  X509_NAME* const subject = X509_get_subject_name(made.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509* const by = issuer == nullptr ? made.get() : issuer;
  X509_set_issuer_name(made.get(), X509_get_subject_name(by));
  X509_set_pubkey(made.get(), key);
  Extend(made.get(), by, NID_basic_constraints,
         is_authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
  if (!is_authority) Extend(made.get(), by, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  X509_sign(made.get(), signer, EVP_sha256());
  return made;
}

template <typename Write>
std::string PemOf(const Write& write) {
  const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
  write(bio.get());
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<std::size_t>(size));
}

std::string PemOf(X509* certificate) {
  return PemOf([&](BIO* bio) { PEM_write_bio_X509(bio, certificate); });
}

}  // namespace

struct Authority::Parts {
  Key key = NewKey();
  Certificate certificate;
};

Authority::Authority(const std::string& name) : parts_(std::make_unique<Parts>()) {
  EVP_PKEY* const key = parts_->key.get();
  parts_->certificate = Signed(name, key, nullptr, key, true);
  certificate_ = PemOf(parts_->certificate.get());
}

Authority::~Authority() = default;

Pair Authority::Issue(const std::string& name) const {
  const Key key = NewKey();
  const Certificate made =
      Signed(name, key.get(), parts_->certificate.get(), parts_->key.get(), false);
  Pair pair;
  pair.certificate = PemOf(made.get());
  pair.key = PemOf([&](BIO* bio) {
    PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return pair;
}

struct LogRecords::Lines {
  std::mutex mutex;
  std::vector<std::string> lines;
};

LogRecords::LogRecords() : lines_(std::make_shared<Lines>()) {
  SetLogSink([lines = lines_](LogRecord record) {
    const std::lock_guard<std::mutex> lock(lines->mutex);
    lines->lines.push_back(std::move(record.message));
  });
}

LogRecords::~LogRecords() { SetLogSink({}); }

int LogRecords::Count(const std::string& beginning) const {
  const std::lock_guard<std::mutex> lock(lines_->mutex);
  int count = 0;
  for (const std::string& line : lines_->lines) count += line.rfind(beginning, 0) == 0;
  return count;
}

std::string LogRecords::Text() const {
  const std::lock_guard<std::mutex> lock(lines_->mutex);
  std::string text;
  for (const std::string& line : lines_->lines) text += line + "\n";
  return text;
}

}  // namespace recsys
