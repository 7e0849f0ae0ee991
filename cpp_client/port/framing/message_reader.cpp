#include "port/framing/message_reader.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace recsys::http2 {
namespace {

// Initial capacity for a message, before more of it was received.
constexpr std::size_t kFirstBytes = 16 << 10;
// `windowBits` of zlib: a gzip header, or zlib's own ("deflate" in HTTP).
constexpr int kGzipBits = 15 + 16;
constexpr int kDeflateBits = 15;

// gRPC's own text.
Status TooLarge(std::size_t got, std::size_t most) {
  return {StatusCode::kResourceExhausted,
          "Received message larger than max (" + std::to_string(got) + " vs. " +
              std::to_string(most) + ")",
          0};
}

// Frees zlib's state in its destructor.
struct InflateStream {
  z_stream stream = {};
  ~InflateStream() { inflateEnd(&stream); }
};

}  // namespace

Status Inflate(std::string_view data, MessageEncoding encoding, std::size_t max_bytes,
               std::string* inflated) {
  InflateStream state;
  z_stream& stream = state.stream;
  const int bits = encoding == MessageEncoding::kGzip ? kGzipBits : kDeflateBits;
  if (inflateInit2(&stream, bits) != Z_OK) {
    return {StatusCode::kResourceExhausted, "no memory to decompress the message", 0};
  }
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  inflated->clear();
  char piece[16 << 10];
  while (true) {
    stream.next_out = reinterpret_cast<Bytef*>(piece);
    stream.avail_out = sizeof piece;
    const int result = inflate(&stream, Z_NO_FLUSH);
    const std::size_t size = sizeof piece - stream.avail_out;
    if (size > max_bytes - inflated->size()) return TooLarge(inflated->size() + size, max_bytes);
    inflated->append(piece, size);
    if (result == Z_STREAM_END) break;
    // Neither progress nor an end: the data is truncated or damaged.
    if (result != Z_OK || (size == 0 && stream.avail_in == 0)) {
      return {StatusCode::kInternal, "cannot decompress the message", 0};
    }
  }
  if (stream.avail_in != 0) return {StatusCode::kInternal, "cannot decompress the message", 0};
  return {};
}

void MessageReader::Add(std::string_view data) {
  if (!is_complete_ && failure_.ok()) data.remove_prefix(AddToMessage(data));
  if (failure_.ok() && !data.empty()) rest_.append(data);
}

std::size_t MessageReader::AddToMessage(std::string_view data) {
  std::size_t used = 0;
  if (num_prefix_ < kPrefixBytes) {
    used = std::min(kPrefixBytes - num_prefix_, data.size());
    std::memcpy(prefix_ + num_prefix_, data.data(), used);
    num_prefix_ += used;
    if (num_prefix_ < kPrefixBytes) return used;
    failure_ = CheckPrefix();
    if (!failure_.ok()) return used;
    data.remove_prefix(used);
  }
  const std::size_t size = std::min(length_ - size_, data.size());
  if (size > 0) {
    Reserve(size_ + size);
    std::memcpy(data_.get() + size_, data.data(), size);
    size_ += size;
  }
  is_complete_ = size_ == length_;
  return used + size;
}

Status MessageReader::CheckPrefix() {
  if (prefix_[0] > 1) {
    return {StatusCode::kInternal,
            "invalid gRPC frame: got the compression flag " + std::to_string(prefix_[0]) +
                ", expected 0 or 1",
            0};
  }
  if (prefix_[0] == 1 && encoding_ == MessageEncoding::kIdentity) {
    return {StatusCode::kInternal,
            "invalid gRPC frame: got a compressed message, expected none without grpc-encoding", 0};
  }
  length_ = 0;
  for (std::size_t i = 1; i < kPrefixBytes; ++i) length_ = length_ << 8 | prefix_[i];
  if (length_ > max_bytes_) return TooLarge(length_, max_bytes_);
  return {};
}

void MessageReader::Reserve(std::size_t size) {
  if (size <= capacity_) return;
  const std::size_t wanted = std::max({size, 2 * capacity_, kFirstBytes});
  const std::size_t capacity = std::min(wanted, length_);
  std::shared_ptr<char> data(new char[capacity], std::default_delete<char[]>());
  if (size_ > 0) std::memcpy(data.get(), data_.get(), size_);
  data_ = std::move(data);
  capacity_ = capacity;
}

Status MessageReader::Take(Bytes* message) {
  const std::string_view view(data_.get(), size_);
  Status status;
  if (prefix_[0] == 1) {
    std::string inflated;
    status = Inflate(view, encoding_, max_bytes_, &inflated);
    if (status.ok()) *message = Bytes::Of(std::move(inflated));
    data_ = nullptr;
  } else {
    *message = {view, std::move(data_)};
  }
  num_prefix_ = length_ = size_ = capacity_ = 0;
  is_complete_ = false;
  if (!status.ok() || rest_at_ == rest_.size()) return status;
  rest_at_ += AddToMessage(std::string_view(rest_).substr(rest_at_));
  if (rest_at_ == rest_.size()) {
    rest_.clear();
    rest_at_ = 0;
  }
  return status;
}

void MessageReader::Drop() {
  data_ = nullptr;
  num_prefix_ = length_ = size_ = capacity_ = 0;
  is_complete_ = false;
  std::string().swap(rest_);
  rest_at_ = 0;
}

}  // namespace recsys::http2
