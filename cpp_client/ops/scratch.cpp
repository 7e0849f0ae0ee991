#include "ops/scratch.h"

#include <cstddef>
#include <vector>

namespace recsys::ops {

char* ScratchOf(Scratch use, std::int64_t num_bytes) {
  thread_local std::vector<char> memory[kNumScratches];
  std::vector<char>& of_use = memory[static_cast<std::size_t>(use)];
  const auto size = static_cast<std::size_t>(num_bytes);
  if (of_use.size() < size) of_use.resize(size);
  return of_use.data();
}

}  // namespace recsys::ops
