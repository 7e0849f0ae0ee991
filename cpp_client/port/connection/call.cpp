// What all calls have in common.

#include "port/connection/call.h"

#include "port/connection/connection.h"

namespace recsys::http2 {

void WireCall::OnDue(double /*now_s*/) {
  if (end) return;
  origin_.connection->Abort(*this, {StatusCode::kDeadlineExceeded, "Deadline Exceeded", 0});
}

void WireCall::Over() {
  origin_.connection = nullptr;
  is_over_.store(true);
  Release();
}

std::vector<std::pair<std::string, std::string>> WireCall::MetadataCopy() const {
  std::vector<std::pair<std::string, std::string>> copy;
  headers().ForEach(
      [&copy](std::string_view name, std::string_view value) { copy.emplace_back(name, value); });
  return copy;
}

}  // namespace recsys::http2
