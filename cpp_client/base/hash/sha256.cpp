#include "base/hash/sha256.h"

#include <openssl/evp.h>

#include "recsys/error.h"

namespace recsys {
namespace {

EVP_MD_CTX* ContextOf(void* context) { return static_cast<EVP_MD_CTX*>(context); }

void Expect(int was_done) {
  if (was_done != 1) throw Error(ErrorKind::kInternal, "SHA-256: OpenSSL refused it");
}

}  // namespace

void Sha256::Free::operator()(void* context) const { EVP_MD_CTX_free(ContextOf(context)); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  Expect(context_ != nullptr ? 1 : 0);
  Expect(EVP_DigestInit_ex(ContextOf(context_.get()), EVP_sha256(), nullptr));
}

void Sha256::Update(const void* data, std::size_t num_bytes) {
  Expect(EVP_DigestUpdate(ContextOf(context_.get()), data, num_bytes));
}

Sha256::Digest Sha256::Finish() {
  Digest digest{};
  unsigned int num_bytes = 0;
  Expect(EVP_DigestFinal_ex(ContextOf(context_.get()), digest.data(), &num_bytes));
  return digest;
}

std::string HexOf(const Sha256::Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * digest.size());
  for (const unsigned char byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string Sha256Hex(std::string_view data) {
  Sha256 digest;
  digest.Update(data.data(), data.size());
  return HexOf(digest.Finish());
}

}  // namespace recsys
