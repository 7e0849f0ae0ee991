#ifndef RECSYS_CLIENT_SETTINGS_H_
#define RECSYS_CLIENT_SETTINGS_H_

// What a client is told before it connects, checked (serve/client_settings.py has the same texts).

#include <string>

#include "recsys/client.h"

namespace recsys::client {

/// Throws Error (kConfig): it is not host:port.
void CheckAddress(const std::string& address);

/// Throws Error (kConfig): it is no time to wait.
void CheckTimeout(double timeout_s);

/// Throws Error (kConfig): one of them cannot be.
void CheckOptions(const ClientOptions& options);

/// What the files hold: PEM, empty where there is no file.
struct TlsMaterial {
  std::string ca;
  std::string certificate;
  std::string key;
};

/// Reads the files and tries them: gRPC ends the process over some that do not fit.
/// Throws Error (kConfig): a file cannot be read or holds something else, or the key is not the
/// certificate's.
TlsMaterial ReadTls(const ClientTls& tls);

}  // namespace recsys::client

#endif  // RECSYS_CLIENT_SETTINGS_H_
