#include "base/allocator.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace recsys {

void ReturnMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace recsys
