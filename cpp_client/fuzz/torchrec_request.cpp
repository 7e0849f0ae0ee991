// Fuzzes predictor.PredictionRequest: the reader, the names, the checks, and a batch of requests
// that pass.

#include "wire/torchrec_request.h"

#include <cstddef>
#include <cstdint>

#include "fuzz/served.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace recsys;
  static Served& served = *new Served;
  static RawRequest& raw = *new RawRequest;
  TorchrecRequest request;
  if (!ReadTorchrecRequest({reinterpret_cast<const char*>(data), size}, &request)) return 0;
  OwnedBytes owned;
  try {
    NameTorchrecInputs(request, served.signature(), served.limits(), &owned, &raw);
    served.Take(raw);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRequest && error.kind() != ErrorKind::kRequestTooLarge) {
      __builtin_trap();
    }
  }
  return 0;
}
