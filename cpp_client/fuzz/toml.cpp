// The reader of the settings' file: whatever is in it, it is read or refused.

#include "config/toml.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "recsys/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    recsys::ParseToml(std::string(reinterpret_cast<const char*>(data), size)).Repr();
  } catch (const recsys::Error&) {
  }
  return 0;
}
