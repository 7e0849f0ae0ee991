#ifndef RECSYS_CONFIG_TLS_FILES_H_
#define RECSYS_CONFIG_TLS_FILES_H_

#include <optional>
#include <string>

#include "config/settings.h"

struct ssl_ctx_st;

namespace recsys {

/// What the files of the TLS settings held when they fitted together: PEM.
struct TlsMaterial {
  std::string certificate;
  std::string key;
  std::optional<std::string> client_ca;
};

/// Reads the files and tries whether they fit together. Throws Error (kConfig) with the setting,
/// the file and what was expected: one cannot be read or holds something else, the key is another
/// certificate's or has a password.
TlsMaterial ReadTls(const TlsSettings& settings);

/// Loads material into a context of OpenSSL's; with client_ca, clients must show a certificate.
/// Throws as ReadTls, whose texts name the settings' files.
void UseTls(ssl_ctx_st* context, const TlsSettings& settings, const TlsMaterial& material);

/// What the file of a setting holds. Throws Error (kConfig).
std::string ReadSecurityFile(const std::string& key, const std::string& path);

}  // namespace recsys

#endif  // RECSYS_CONFIG_TLS_FILES_H_
