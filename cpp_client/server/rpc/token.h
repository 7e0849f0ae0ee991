#ifndef RECSYS_SERVER_RPC_TOKEN_H_
#define RECSYS_SERVER_RPC_TOKEN_H_

#include <mutex>
#include <optional>
#include <string>

#include "base/sha256.h"
#include "server/rpc/file_stamp.h"
#include "server/rpc/service.h"

namespace recsys {

/// Lets those through who show the token of a file (serve/security.py; config/token_file.h says
/// what the file must be).
///
/// A file that has changed is read again. One that cannot be used lets nobody through until it can:
/// who takes the file away takes the access away; the log says so once. Thread-safe.
class TokenCheck {
 public:
  /// Throws Error (kConfig): the file cannot be used from the start.
  explicit TokenCheck(std::string path);

  /// OK, or UNAUTHENTICATED: the header is missing, doubled, or carries another token; the text
  /// does not say which tokens there are. For RpcOptions::authorize.
  Status Check(const Call& call);

 private:
  void Refresh();

  const std::string path_;
  std::mutex mutex_;
  FileStamp stamp_;
  /// Digests are of one length, whatever was sent.
  std::optional<Sha256::Digest> digest_;
};

}  // namespace recsys

#endif  // RECSYS_SERVER_RPC_TOKEN_H_
