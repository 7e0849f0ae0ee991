#include "server/rpc/token.h"

#include <openssl/crypto.h>

#include <utility>

#include "base/log.h"
#include "config/token_file.h"
#include "recsys/error.h"

namespace recsys {
namespace {

constexpr std::string_view kBearer = "Bearer ";

Sha256::Digest DigestOf(std::string_view text) {
  Sha256 digest;
  digest.Update(text.data(), text.size());
  return digest.Finish();
}

Status Refused(const char* text) { return {StatusCode::kUnauthenticated, text, 0}; }

}  // namespace

TokenCheck::TokenCheck(std::string path)
    : path_(std::move(path)), stamp_(StampOf({path_})), digest_(DigestOf(ReadToken(path_))) {}

Status TokenCheck::Check(const Call& call) {
  const std::string_view header = call.Metadata("authorization");
  if (call.CountMetadata("authorization") != 1 || header.substr(0, kBearer.size()) != kBearer) {
    return Refused("authorization: expected one header, Bearer and the token");
  }
  const Sha256::Digest shown = DigestOf(header.substr(kBearer.size()));
  const std::lock_guard<std::mutex> lock(mutex_);
  Refresh();
  // In constant time.
  if (!digest_ || CRYPTO_memcmp(shown.data(), digest_->data(), shown.size()) != 0) {
    return Refused("authorization: got another token than the admin service's");
  }
  return {};
}

void TokenCheck::Refresh() {
  FileStamp stamp = StampOf({path_});
  if (stamp == stamp_) return;
  stamp_ = std::move(stamp);
  try {
    digest_ = DigestOf(ReadToken(path_));
  } catch (const Error& error) {
    digest_.reset();
    Log(LogLevel::kError,
        std::string("admin calls are refused until the token file can be used: ") + error.what());
    return;
  }
  Log(LogLevel::kInfo, "the admin token has changed");
}

}  // namespace recsys
