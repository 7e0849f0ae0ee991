// Files of TLS and tokens: what can be used, and what is said of what cannot.

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <vector>

#include "config/tls_files.h"
#include "config/token_file.h"
#include "tests/config/folder.h"

namespace recsys {
namespace {

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;

std::string Text(BIO* bio) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

Key MadeKey() { return Key(EVP_EC_gen("P-256")); }

std::string PemOf(EVP_PKEY* key, const char* password = nullptr) {
  const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, password == nullptr ? nullptr : EVP_aes_128_cbc(),
                           nullptr, 0, nullptr, const_cast<char*>(password));
  return Text(bio.get());
}

/// Signed by its own key.
std::string CertificateOf(EVP_PKEY* key) {
  const std::unique_ptr<X509, Free> made(X509_new());
  X509_set_version(made.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
  X509_set_pubkey(made.get(), key);
  X509_NAME* name = X509_get_subject_name(made.get());
  const unsigned char common[] = "localhost";
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, common, -1, -1, 0);
  X509_set_issuer_name(made.get(), name);
  X509_sign(made.get(), key, EVP_sha256());
  const std::unique_ptr<BIO, Free> bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), made.get());
  return Text(bio.get());
}

class Tls : public testing::Test {
 protected:
  Tls() {
    settings.certificate = folder.Write("server.crt", CertificateOf(key.get()));
    settings.key = folder.Write("server.key", PemOf(key.get()));
  }
  std::string ErrorOfReading() {
    return ErrorOf([this] { ReadTls(settings); });
  }

  Folder folder;
  Key key = MadeKey();
  TlsSettings settings;
};

TEST_F(Tls, FilesThatFitTogetherAreReadAsTheyAre) {
  EXPECT_EQ(ReadTls(settings).key, PemOf(key.get()));
  EXPECT_FALSE(ReadTls(settings).client_ca);
  const std::string chain = CertificateOf(key.get()) + CertificateOf(MadeKey().get());
  settings.certificate = folder.Write("chain", chain);
  settings.client_ca = folder.Write("clients.crt", chain);
  EXPECT_EQ(ReadTls(settings).client_ca, chain);
}

TEST_F(Tls, AnotherKeyIsRefused) {
  settings.key = folder.Write("other.key", PemOf(MadeKey().get()));
  EXPECT_EQ(ErrorOfReading(), "tls.certificate, tls.key: got '" + settings.certificate + "' and '" +
                                  settings.key +
                                  "', expected a certificate in PEM and its own key "
                                  "(key_values_mismatch)");
}

TEST_F(Tls, FilesThatAreNoPemAreRefused) {
  const std::string certificate = settings.certificate;
  const std::vector<std::string> wrong = {
      "", "junk", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"};
  for (const std::string& text : wrong) {
    settings.certificate = folder.Write("wrong", text);
    EXPECT_NE(ErrorOfReading().find("expected a certificate in PEM and its own key ("),
              std::string::npos)
        << text;
    settings.certificate = certificate;
    settings.client_ca = folder.path("wrong");
    EXPECT_EQ(
        ErrorOfReading().rfind(
            "tls.client_ca: got '" + *settings.client_ca + "', expected certificates in PEM (", 0),
        0U)
        << text;
    settings.client_ca.reset();
  }
  settings.certificate = folder.Write("chain", CertificateOf(key.get()) +
                                                   "-----BEGIN CERTIFICATE-----\nAAAA\n-----END "
                                                   "CERTIFICATE-----\n");
  EXPECT_NE(ErrorOfReading(), "nothing was thrown");
}

TEST_F(Tls, AKeyWithAPasswordIsRefusedWithoutAskingForIt) {
  settings.key = folder.Write("locked.key", PemOf(key.get(), "secret"));
  EXPECT_EQ(ErrorOfReading(),
            "tls.key: '" + settings.key + "' is encrypted, expected a key without a password");
}

TEST_F(Tls, AFileThatIsNotThereIsNamed) {
  settings.key = "missing.key";
  EXPECT_EQ(ErrorOfReading(), "tls.key: cannot read 'missing.key': No such file or directory");
}

constexpr char kToken[] = "0123456789abcdef";

TEST(Token, IsReadWithoutTheWhiteSpaceAroundIt) {
  const Folder folder;
  EXPECT_EQ(ReadToken(folder.Write("token", std::string(" ") + kToken + "\r\n", 0600)), kToken);
  EXPECT_EQ(ReadToken(folder.Write("token", kToken, 0640)), kToken);
}

TEST(Token, AFileThatOthersMayReadOrWriteIsRefused) {
  const Folder folder;
  for (const auto& [mode, digits] :
       {std::pair(0644, "0644"), std::pair(0660, "0660"), std::pair(0601, "0601")}) {
    const std::string path = folder.Write("token", kToken, static_cast<mode_t>(mode));
    EXPECT_EQ(ErrorOf([&path] { ReadToken(path); }),
              "admin.token_file: '" + path + "' has mode " + digits +
                  ", expected none but its owner to write it and none but its owner and group to "
                  "read it; chmod 0600 does that");
  }
}

TEST(Token, WhatIsNoTokenIsRefused) {
  const Folder folder;
  for (const std::string& text :
       {std::string("short"), std::string(5000, 'a'), std::string("0123456789\n0123456789"),
        std::string(), std::string("0123456789abcd\u00e9f")}) {
    const std::string path = folder.Write("token", text, 0600);
    const std::string error = ErrorOf([&path] { ReadToken(path, "token"); });
    EXPECT_EQ(
        error.rfind("token: '" + path + "' holds no token, expected one line of 16 to 4096", 0), 0U)
        << error;
  }
  EXPECT_EQ(ErrorOf([&] { ReadToken(folder.path()); }),
            "admin.token_file: cannot read '" + folder.path() + "': Is a directory");
}

TEST(Token, APipeThatNobodyWritesToIsNotWaitedFor) {
  const Folder folder;
  const std::string path = folder.path("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(ErrorOf([&path] { ReadToken(path); }),
            "admin.token_file: '" + path + "' is no regular file, expected one");
}

}  // namespace
}  // namespace recsys
