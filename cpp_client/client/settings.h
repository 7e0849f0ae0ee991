#ifndef RECSYS_CLIENT_SETTINGS_H_
#define RECSYS_CLIENT_SETTINGS_H_

// Checks a client's settings before it connects (serve/client/settings.py has the same texts).

#include <string>

#include "recsys/client.h"

namespace recsys::client {

/// Throws Error (kConfig) if the address is not host:port.
void CheckAddress(const std::string& address);

/// Throws Error (kConfig) if it is not a valid timeout.
void CheckTimeout(double timeout_s);

/// Throws Error (kConfig) if an option is invalid.
void CheckOptions(const ClientOptions& options);

/// Contents of the files: PEM, empty if there is no file.
struct TlsMaterial {
  std::string ca;
  std::string certificate;
  std::string key;
};

/// Reads and checks the files: gRPC aborts the process if some do not match. Throws Error (kConfig)
/// if a file cannot be read or is not PEM of its kind, or if the key does not belong to the
/// certificate.
TlsMaterial ReadTls(const ClientTls& tls);

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_SETTINGS_H_
