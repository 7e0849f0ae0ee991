// Fuzzes a call's input: header fields, and bytes that should be messages, in pieces.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "port/framing/message_reader.h"
#include "port/framing/request_headers.h"

namespace {

constexpr std::size_t kMaxHeaderBytes = 1024;
constexpr std::int64_t kMaxMessageBytes = 4096;

/// Takes a text whose length is its first byte.
std::string_view TakeText(std::string_view* data) {
  if (data->empty()) return {};
  const std::size_t size = static_cast<unsigned char>(data->front());
  data->remove_prefix(1);
  const std::string_view text = data->substr(0, size);
  data->remove_prefix(text.size());
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace recsys::http2;  // NOLINT
  std::string_view data(reinterpret_cast<const char*>(bytes), size);
  RequestHeaders headers;
  const std::size_t num_fields = TakeText(&data).size() % 8;
  for (std::size_t i = 0; i < num_fields; ++i) {
    const std::string_view name = TakeText(&data);
    headers.Add(name, TakeText(&data), kMaxHeaderBytes);
  }
  std::size_t num_bytes = 0;
  headers.ForEach([&](std::string_view name, std::string_view value) {
    num_bytes += name.size() + value.size();
    if (headers.Count(name) == 0) std::abort();
  });
  if (num_bytes > 2 * kMaxHeaderBytes) std::abort();
  PercentEncoded(headers.path());

  MessageReader reader(kMaxMessageBytes, headers.encoding());
  while (!data.empty()) {
    reader.Add(TakeText(&data));
    while (reader.has_message()) {
      recsys::Bytes message;
      if (!reader.Take(&message).ok()) return 0;
      if (message.view.size() > kMaxMessageBytes) std::abort();
    }
    if (!reader.failure().ok()) return 0;
    if (reader.is_unfinished() && reader.announced_bytes() > kMaxMessageBytes) std::abort();
  }
  reader.Drop();
  return 0;
}
