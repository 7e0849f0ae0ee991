#ifndef RECSYS_BASE_HASH_SHA256_H_
#define RECSYS_BASE_HASH_SHA256_H_

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace recsys {

/// Incremental SHA-256. Not thread-safe.
class Sha256 {
 public:
  using Digest = std::array<unsigned char, 32>;

  /// Throws Error (kInternal) if the digest library cannot be used.
  Sha256();

  void Update(const void* data, std::size_t num_bytes);
  /// Returns the digest of all data; no Update may follow.
  Digest Finish();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

/// Returns the digest as 64 lower-case hexadecimal digits.
std::string HexOf(const Sha256::Digest& digest);

/// Returns the digest of `data`, as HexOf writes it.
std::string Sha256Hex(std::string_view data);

}  // namespace recsys

#endif  // RECSYS_BASE_HASH_SHA256_H_
