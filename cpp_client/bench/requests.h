#ifndef RECSYS_BENCH_REQUESTS_H_
#define RECSYS_BENCH_REQUESTS_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bench/mixes.h"
#include "recsys/client.h"

namespace recsys::bench {

/// What requests look like.
struct Shape {
  /// Of each request; of a ranking request its candidates.
  Mix rows;
  /// Whether the model's context inputs are given once per request.
  bool ranking = false;
  /// IDs of a row in each sparse input, and in inputs by name.
  Mix ids_per_bag;
  std::map<std::string, Mix> ids_per_bag_of;
  /// Exponent of the IDs' distribution; 0 for uniform.
  double zipf = 0;
  /// Requests that are made, then sent over and over; fewer where they are large.
  int num_distinct = 4096;
  std::string model;
  std::string version;
  /// Instead of all that: so many meaningless bytes, for servers that answer anything.
  int payload_bytes = 0;
};

/// A request as it goes on the wire. It shares its bytes with its copies.
struct Prepared {
  grpc::ByteBuffer bytes;
  std::int32_t num_rows = 0;
  /// The part of the rows' mix, which tells it from others in the result.
  std::int32_t kind = 0;
};

/// Throws Error (kConfig): the shape names an input that the model has not, or wants a context that
/// it has not.
void CheckShape(const Shape& shape, const ModelMetadata& metadata);

/// Valid requests: standard normal dense inputs, weights between 0 and 1. At most 256 MiB of them.
std::vector<Prepared> Prepare(const ModelMetadata& metadata, const Shape& shape,
                              std::uint64_t seed);

/// Names of the kinds; none where all requests are alike.
std::vector<std::string> KindsOf(const Shape& shape);

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_REQUESTS_H_
