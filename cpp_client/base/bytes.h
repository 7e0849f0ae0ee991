#ifndef RECSYS_BASE_BYTES_H_
#define RECSYS_BASE_BYTES_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace recsys {

/// Bytes that live as long as their owner: those of a request on the wire, or a part of a response.
struct Bytes {
  std::string_view view;
  std::shared_ptr<const void> owner;

  static Bytes Of(std::string text) {
    auto owner = std::make_shared<const std::string>(std::move(text));
    const std::string_view view = *owner;
    return {view, std::move(owner)};
  }
};

/// A serialized message in parts, so that large ones need not be joined. Small ones have one part.
struct Message {
  std::vector<Bytes> parts;

  static Message Of(std::string text) {
    Message message;
    message.parts.push_back(Bytes::Of(std::move(text)));
    return message;
  }
  std::size_t num_bytes() const {
    std::size_t sum = 0;
    for (const Bytes& part : parts) sum += part.view.size();
    return sum;
  }
  std::string Joined() const {
    std::string text;
    text.reserve(num_bytes());
    for (const Bytes& part : parts) text.append(part.view);
    return text;
  }
};

}  // namespace recsys

#endif  // RECSYS_BASE_BYTES_H_
