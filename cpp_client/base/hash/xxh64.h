#ifndef RECSYS_BASE_HASH_XXH64_H_
#define RECSYS_BASE_HASH_XXH64_H_

#include <cstdint>
#include <string_view>

namespace recsys {

/// Returns XXH64 of `bytes` with seed 0 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
std::uint64_t Xxh64(std::string_view bytes);

}  // namespace recsys

#endif  // RECSYS_BASE_HASH_XXH64_H_
