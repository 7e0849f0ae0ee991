// The C allocator: what is freed is kept for the next batch, and goes back where it should.

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/allocator.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RECSYS_OTHER_ALLOCATOR
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RECSYS_OTHER_ALLOCATOR
#endif
#endif

#ifdef RECSYS_OTHER_ALLOCATOR
#define RECSYS_NEEDS_GLIBC_MALLOC() GTEST_SKIP() << "the sanitizer has an allocator of its own"
#else
#define RECSYS_NEEDS_GLIBC_MALLOC() static_cast<void>(0)
#endif

namespace recsys {
namespace {

constexpr std::size_t kPieceBytes = 1 << 20;
constexpr std::size_t kNumPieces = 64;
constexpr std::int64_t kHalfKb = kPieceBytes * kNumPieces / 2 / 1024;

/// Resident memory of the process that is no file's.
std::int64_t AnonymousKb() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kb = 0;
    if (word == "RssAnon:" && status >> kb) return kb;
  }
  return 0;
}

/// Takes memory, writes to all of it, and frees it again.
void UseMemory() {
  std::vector<void*> pieces;
  for (std::size_t i = 0; i < kNumPieces; ++i) {
    pieces.push_back(std::malloc(kPieceBytes));
    std::memset(pieces.back(), 1, kPieceBytes);
  }
  for (void* piece : pieces) std::free(piece);
}

TEST(Allocator, ReturnsWhatMallocKeeps) {
  RECSYS_NEEDS_GLIBC_MALLOC();
  // As recsys/base/allocator.py does.
  ASSERT_EQ(mallopt(M_MMAP_THRESHOLD, 32 << 20), 1);
  ASSERT_EQ(mallopt(M_TRIM_THRESHOLD, 512 << 20), 1);
  const std::int64_t before = AnonymousKb();
  UseMemory();
  EXPECT_GT(AnonymousKb() - before, kHalfKb);
  ReturnMemory();
  EXPECT_LT(AnonymousKb() - before, kHalfKb / 4);
}

}  // namespace
}  // namespace recsys
