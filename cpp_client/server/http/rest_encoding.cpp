#include "server/http/rest_encoding.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

#include "recsys/error.h"

namespace recsys {
namespace {

// zlib's word for "whichever of the two its header says".
constexpr int kEither = MAX_WBITS | 32;
constexpr std::size_t kPieceBytes = 64 << 10;

struct End {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

Error Wrong(ErrorKind kind, const std::string& text) { return Error(kind, "body: got " + text); }

}  // namespace

bool IsKnownEncoding(std::string_view encoding) {
  return encoding == "gzip" || encoding == "deflate";
}

std::string Inflate(std::string_view data, std::size_t max_bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, kEither) != Z_OK) throw Error(ErrorKind::kInternal, "zlib");
  const std::unique_ptr<z_stream, End> ended(&stream);
  // zlib does not write to it.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  std::string inflated;
  int result = Z_OK;
  while (result == Z_OK && inflated.size() <= max_bytes) {
    const std::size_t start = inflated.size();
    inflated.resize(std::min(start + kPieceBytes, max_bytes + 1));
    stream.next_out = reinterpret_cast<Bytef*>(&inflated[start]);
    stream.avail_out = static_cast<uInt>(inflated.size() - start);
    result = inflate(&stream, Z_NO_FLUSH);
    inflated.resize(inflated.size() - stream.avail_out);
  }
  const std::string size = std::to_string(data.size());
  const bool is_broken = result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR;
  if (is_broken) {
    throw Wrong(ErrorKind::kRequest, size + " bytes that are neither gzip nor deflate");
  }
  if (inflated.size() > max_bytes) {
    throw Wrong(ErrorKind::kBodyTooLarge,
                "more than " + std::to_string(max_bytes) +
                    " bytes once it was inflated, expected at most so many");
  }
  if (result != Z_STREAM_END) {
    throw Wrong(ErrorKind::kRequest, size + " compressed bytes that end too early");
  }
  if (stream.avail_in > 0) {
    throw Wrong(ErrorKind::kRequest,
                std::to_string(stream.avail_in) + " bytes after the compressed ones");
  }
  return inflated;
}

}  // namespace recsys
