#include "bench/requests.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"
#include "bench/ids.h"
#include "client/messages.h"

namespace recsys::bench {
namespace {

constexpr std::size_t kMostPoolBytes = std::size_t{256} << 20;

/// One sparse input, ready to be drawn from.
struct Source {
  const SparseInput* input;
  const Mix* ids_per_bag;
  IdDraw ids;
  bool is_context;
};

/// IDs up to this are worth asking for: where any ID is taken, those of the tables' own rows.
std::int64_t IdLimit(const SparseInput& input, const std::optional<std::int64_t>& limit) {
  if (limit) return *limit;
  std::int64_t most = 1;
  for (const TableUse& table : input.tables) most = std::max(most, table.num_embeddings);
  return most;
}

class Maker {
 public:
  Maker(const ModelMetadata& metadata, const Shape& shape, std::uint64_t seed)
      : metadata_(metadata), shape_(shape), generator_(seed) {
    if (shape.ranking) {
      context_.insert(metadata.signature.context.begin(), metadata.signature.context.end());
    }
    for (std::size_t i = 0; i < metadata.signature.sparse.size(); ++i) {
      const SparseInput& input = metadata.signature.sparse[i];
      const auto own = shape.ids_per_bag_of.find(input.name);
      sources_.push_back({&input,
                          own == shape.ids_per_bag_of.end() ? &shape.ids_per_bag : &own->second,
                          IdDraw(IdLimit(input, metadata.id_limits[i]), shape.zipf),
                          context_.count(input.name) != 0});
    }
    options_.model = shape.model;
    options_.version = shape.version;
  }

  Prepared Make() {
    const std::size_t kind = shape_.rows.DrawPart(generator_);
    const std::int64_t num_rows = shape_.rows.DrawFrom(kind, generator_);
    ClientRequest request(num_rows);
    for (const DenseInput& dense : metadata_.signature.dense) AddDense(dense, &request);
    for (const Source& source : sources_) AddSparse(source, &request);
    return {client::BytesOf(request, options_), static_cast<std::int32_t>(num_rows),
            static_cast<std::int32_t>(kind)};
  }

 private:
  void AddDense(const DenseInput& dense, ClientRequest* request) {
    const bool is_context = context_.count(dense.name) != 0;
    const std::int64_t rows = is_context ? 1 : request->num_rows();
    std::vector<float> values(static_cast<std::size_t>(rows * dense.width));
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(generator_);
    if (is_context) {
      request->AddContextDense(dense.name, values);
    } else {
      request->AddDense(dense.name, values);
    }
  }

  void AddSparse(const Source& source, ClientRequest* request) {
    const std::int64_t rows = source.is_context ? 1 : request->num_rows();
    std::vector<std::int32_t> lengths;
    std::vector<std::int64_t> ids;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t count = source.ids_per_bag->Draw(generator_);
      lengths.push_back(static_cast<std::int32_t>(count));
      for (std::int64_t i = 0; i < count; ++i) ids.push_back(source.ids.Draw(generator_));
    }
    std::vector<float> weights(source.input->weighted ? ids.size() : 0);
    std::uniform_real_distribution<float> uniform(0, 1);
    for (float& weight : weights) weight = uniform(generator_);
    if (source.is_context) {
      request->AddContextSparse(source.input->name, ids, weights);
    } else {
      request->AddSparse(source.input->name, lengths, ids, weights);
    }
  }

  const ModelMetadata& metadata_;
  const Shape& shape_;
  Generator generator_;
  std::set<std::string> context_;
  std::vector<Source> sources_;
  ClientOptions options_;
};

/// One slice for each request: gRPC takes a reference for each time that it is sent.
Prepared InOnePiece(Prepared request) {
  grpc::Slice slice;
  if (!request.bytes.DumpToSingleSlice(&slice).ok()) return request;
  request.bytes = grpc::ByteBuffer(&slice, 1);
  return request;
}

}  // namespace

void CheckShape(const Shape& shape, const ModelMetadata& metadata) {
  std::vector<std::string> known;
  for (const SparseInput& input : metadata.signature.sparse) known.push_back(input.name);
  for (const auto& [name, mix] : shape.ids_per_bag_of) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw Error(ErrorKind::kConfig, "--ids-per-bag: got " + Repr(name) +
                                          ", expected a sparse input: " + Listed(known));
    }
  }
  if (shape.ranking && metadata.signature.context.empty()) {
    throw Error(ErrorKind::kConfig,
                "--candidates: the model was exported without a context; --rows sends whole rows");
  }
}

std::vector<Prepared> Prepare(const ModelMetadata& metadata, const Shape& shape,
                              std::uint64_t seed) {
  std::vector<Prepared> requests;
  if (shape.payload_bytes > 0) {
    const grpc::Slice slice(std::string(static_cast<std::size_t>(shape.payload_bytes), '\xff'));
    requests.push_back({grpc::ByteBuffer(&slice, 1), 1, 0});
    return requests;
  }
  Maker maker(metadata, shape, seed);
  std::size_t num_bytes = 0;
  while (requests.size() < static_cast<std::size_t>(shape.num_distinct) &&
         num_bytes < kMostPoolBytes) {
    requests.push_back(InOnePiece(maker.Make()));
    num_bytes += requests.back().bytes.Length();
  }
  return requests;
}

std::vector<std::string> KindsOf(const Shape& shape) {
  std::vector<std::string> kinds;
  if (shape.rows.parts.size() == 1) return kinds;
  for (const MixPart& part : shape.rows.parts) {
    kinds.push_back(part.label() + (part.label() == "1" ? " row" : " rows"));
  }
  return kinds;
}

}  // namespace recsys::bench
