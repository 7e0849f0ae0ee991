#include "client/settings.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <system_error>
#include <utility>

#include "base/text.h"

namespace recsys::client {
namespace {

constexpr std::size_t kMostAddressBytes = 300;

[[noreturn]] void Refuse(const std::string& text) { throw Error(ErrorKind::kConfig, text); }

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* held) const {
    kFree(held);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

std::string ReadFile(const std::string& name, const std::string& path) {
  if (path.empty()) return {};
  const auto refuse = [&](int reason) {
    Refuse(name + ": cannot read " + Repr(path) + ": " + std::strerror(reason));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) refuse(EISDIR);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) refuse(errno);
  std::string data{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) refuse(EIO);
  return data;
}

Bio Reader(const std::string& data) {
  return Bio(BIO_new_mem_buf(data.data(), static_cast<int>(data.size())));
}

Certificate ReadCertificate(BIO* from) {
  return Certificate(PEM_read_bio_X509(from, nullptr, nullptr, nullptr));
}

/// Returns the number of certificates; also 0 if one is damaged.
int CountCertificates(const std::string& data) {
  const Bio bio = Reader(data);
  int count = 0;
  while (ReadCertificate(bio.get())) ++count;
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  return at_end ? count : 0;
}

/// Answers PEM's request for a password: there is no user to ask.
int NoPassword(char* /*buffer*/, int /*size*/, int /*for_writing*/, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

void CheckPair(const ClientTls& tls, const TlsMaterial& material) {
  const Bio from = Reader(material.certificate), key_from = Reader(material.key);
  const Certificate certificate = ReadCertificate(from.get());
  bool is_encrypted = false;
  const Key key(PEM_read_bio_PrivateKey(key_from.get(), nullptr, NoPassword, &is_encrypted));
  const bool fits = certificate && key && X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (is_encrypted) {
    Refuse("tls.key: " + Repr(tls.key) + " is encrypted, expected a key without a password");
  }
  if (!fits) {
    Refuse("tls.certificate, tls.key: got " + Repr(tls.certificate) + " and " + Repr(tls.key) +
           ", expected a certificate in PEM and its own key");
  }
}

void CheckRetries(const ClientRetries& retries) {
  if (retries.max_attempts < 1) {
    Refuse("retries.max_attempts: got " + std::to_string(retries.max_attempts) +
           ", expected at least 1");
  }
  const std::pair<const char*, double> numbers[] = {{"first_backoff_s", retries.first_backoff_s},
                                                    {"max_backoff_s", retries.max_backoff_s},
                                                    {"budget_share", retries.budget_share},
                                                    {"budget_burst", retries.budget_burst}};
  for (const auto& [name, number] : numbers) {
    if (!(number >= 0) || !std::isfinite(number)) {
      Refuse("retries." + std::string(name) + ": got " + ReprFloat(number) +
             ", expected at least 0");
    }
  }
}

}  // namespace

void CheckAddress(const std::string& address) {
  // dns:/// is gRPC's own: it uses all addresses of a name, not only the first.
  static const std::regex pattern(
      R"((?:dns:///)?(?:\[[0-9A-Za-z:.%]+\]|[^\s/:@\[\]]+):([0-9]{1,5}))");
  std::smatch match;
  if (address.size() <= kMostAddressBytes && std::regex_match(address, match, pattern)) {
    const int port = std::stoi(match[1]);
    if (port > 0 && port <= 65535) return;
  }
  Refuse("address: got " + Repr(address.substr(0, 80)) + ", expected host:port");
}

void CheckTimeout(double timeout_s) {
  if (!(timeout_s > 0) || !std::isfinite(timeout_s)) {
    Refuse("timeout_s: got " + ReprFloat(timeout_s) + ", expected more than 0 seconds");
  }
}

void CheckOptions(const ClientOptions& options) {
  CheckTimeout(options.timeout_s);
  const int priority = static_cast<int>(options.priority);
  if (priority < 0 || priority > static_cast<int>(Priority::kLow)) {
    Refuse("priority: got " + std::to_string(priority) + ", expected one of recsys::Priority");
  }
  const std::pair<const char*, int> counts[] = {{"num_connections", options.num_connections},
                                                {"num_threads", options.num_threads}};
  for (const auto& [name, count] : counts) {
    if (count < 1 || count > 1024) {
      Refuse(std::string(name) + ": got " + std::to_string(count) + ", expected 1 to 1024");
    }
  }
  if (options.max_stream_bytes < 1) {
    Refuse("max_stream_bytes: got " + std::to_string(options.max_stream_bytes) +
           ", expected at least 1");
  }
  CheckRetries(options.retries);
}

TlsMaterial ReadTls(const ClientTls& tls) {
  if (tls.certificate.empty() != tls.key.empty()) {
    Refuse("tls.certificate, tls.key: got one of them, expected both or none");
  }
  TlsMaterial material{ReadFile("tls.ca", tls.ca), ReadFile("tls.certificate", tls.certificate),
                       ReadFile("tls.key", tls.key)};
  if (!tls.ca.empty() && CountCertificates(material.ca) == 0) {
    Refuse("tls.ca: got " + Repr(tls.ca) + ", expected certificates in PEM");
  }
  if (!tls.certificate.empty()) CheckPair(tls, material);
  return material;
}

}  // namespace recsys::client
