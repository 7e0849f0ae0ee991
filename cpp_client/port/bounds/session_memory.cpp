#include "port/bounds/session_memory.h"

#include <malloc.h>

#include <cstdlib>

namespace recsys::http2 {
namespace {

std::int64_t SizeOf(void* block) { return static_cast<std::int64_t>(malloc_usable_size(block)); }

}  // namespace

// nghttp2 takes a C allocator.  NOLINTBEGIN(cppcoreguidelines-no-malloc)
void* SessionMemory::Allocate(std::size_t size, void* self) {
  void* const block = std::malloc(size);
  Of(self).num_bytes_ += SizeOf(block);
  return block;
}

void* SessionMemory::AllocateZeros(std::size_t num, std::size_t size, void* self) {
  void* const block = std::calloc(num, size);
  Of(self).num_bytes_ += SizeOf(block);
  return block;
}

void* SessionMemory::Reallocate(void* block, std::size_t size, void* self) {
  const std::int64_t before = SizeOf(block);
  void* const moved = std::realloc(block, size);
  // Without memory, the old block stays.
  if (moved != nullptr) Of(self).num_bytes_ += SizeOf(moved) - before;
  return moved;
}

void SessionMemory::Free(void* block, void* self) {
  Of(self).num_bytes_ -= SizeOf(block);
  std::free(block);
}
// NOLINTEND(cppcoreguidelines-no-malloc)

}  // namespace recsys::http2
