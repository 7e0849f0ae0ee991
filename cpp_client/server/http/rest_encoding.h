#ifndef RECSYS_SERVER_HTTP_REST_ENCODING_H_
#define RECSYS_SERVER_HTTP_REST_ENCODING_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace recsys {

/// Whether bodies may be compressed so: "gzip" or "deflate" (serve/rest_encoding.py).
bool IsKnownEncoding(std::string_view encoding);

/// What a body was before it was compressed. `max_bytes`: of what comes out; no more than one byte
/// beyond is made. Throws Error: kBodyTooLarge (it is longer), kRequest (the data is broken,
/// incomplete, or followed by more).
std::string Inflate(std::string_view data, std::size_t max_bytes);

}  // namespace recsys

#endif  // RECSYS_SERVER_HTTP_REST_ENCODING_H_
