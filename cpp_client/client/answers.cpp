#include "client/answers.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/cursor.h"

namespace recsys::client {
namespace {

ClientError NoMessage(const char* name) {
  return ClientError(StatusCode::kInternal,
                     std::string("the server's answer is not a valid ") + name);
}

std::int64_t ReadInt(Cursor* cursor) { return static_cast<std::int64_t>(cursor->ReadVarint()); }

/// Appends the integers of a packed field.
void AppendPacked(Cursor* cursor, std::vector<std::int64_t>* numbers) {
  std::string_view packed = cursor->ReadBytes();
  if (!AreVarints(packed)) return cursor->Fail();
  while (!packed.empty()) numbers->push_back(static_cast<std::int64_t>(TakeVarint(&packed)));
}

auto Texts(std::uint32_t number, std::vector<std::string>* to) {
  return FieldReader{DelimitedTag(number),
                     [to](Cursor* cursor) { to->emplace_back(cursor->ReadText()); }};
}

/// An enum with a name per number; unknown numbers map to `names[0]`.
template <typename Name, std::size_t N>
auto Enum(std::uint32_t number, const Name (&names)[N], Name* to) {
  return FieldReader{VarintTag(number), [&names, to](Cursor* cursor) {
                       const std::uint64_t value = cursor->ReadVarint();
                       *to = names[value < N ? value : 0];
                     }};
}

/// A repeated integer field: packed, and unpacked below.
auto PackedInts(std::uint32_t number, std::vector<std::int64_t>* to) {
  return FieldReader{DelimitedTag(number), [to](Cursor* cursor) { AppendPacked(cursor, to); }};
}

auto UnpackedInts(std::uint32_t number, std::vector<std::int64_t>* to) {
  return FieldReader{VarintTag(number), [to](Cursor* cursor) { to->push_back(ReadInt(cursor)); }};
}

void Read(Cursor* cursor, DenseInput* input) {
  ReadFields(cursor, Text(1, &input->name), Int(2, &input->width), Int(3, &input->missing),
             Texts(4, &input->columns));
}

void Read(Cursor* cursor, TableUse* table) {
  static constexpr IdPolicy kPolicies[] = {IdPolicy::kReject, IdPolicy::kReject, IdPolicy::kHash,
                                           IdPolicy::kZero,   IdPolicy::kMapped, IdPolicy::kFmix64};
  ReadFields(cursor, Text(1, &table->name), Int(2, &table->num_embeddings),
             Enum(3, kPolicies, &table->id_policy));
}

void Read(Cursor* cursor, recsys::Output* output) {
  const FieldReader dtype{DelimitedTag(3), [output](Cursor* at) {
                            const bool is_integer = at->ReadBytes() == "int64";
                            output->type = is_integer ? OutputType::kInt64 : OutputType::kFloat32;
                          }};
  std::vector<std::int64_t> dims;
  ReadFields(cursor, Text(1, &output->name), PackedInts(2, &output->shape),
             UnpackedInts(2, &output->shape), dtype, PackedInts(4, &dims), UnpackedInts(4, &dims));
  // Servers that know no others than [B, *shape] do not send it.
  if (dims.empty()) return;
  output->shape.clear();
  output->batch_dims.clear();
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 0) {
      output->batch_dims.push_back(static_cast<std::int64_t>(i));
    } else {
      output->shape.push_back(dims[i]);
    }
  }
}

void Read(Cursor* cursor, RequestLimits* limits) {
  *limits = {0, 0, 0};
  ReadFields(cursor, Int(1, &limits->max_rows), Int(2, &limits->max_ids),
             Int(3, &limits->max_bytes));
}

/// Reads a nested message.
template <typename Message>
void ReadInner(Cursor* cursor, Message* message) {
  Cursor inner = cursor->Enter();
  Read(&inner, message);
  cursor->Leave(inner);
}

template <typename Message>
auto Inner(std::uint32_t number, Message* to) {
  return FieldReader{DelimitedTag(number), [to](Cursor* cursor) { ReadInner(cursor, to); }};
}

template <typename Message>
auto InnerList(std::uint32_t number, std::vector<Message>* to) {
  return FieldReader{DelimitedTag(number),
                     [to](Cursor* cursor) { ReadInner(cursor, &to->emplace_back()); }};
}

/// An untrusted Output from the wire.
struct WireOutput {
  std::string_view name;
  std::vector<std::int64_t> dims;
  std::string_view values;
  OutputType type = OutputType::kFloat32;

  std::size_t element_bytes() const {
    return type == OutputType::kInt64 ? sizeof(std::int64_t) : sizeof(float);
  }

  /// Whether the number of values matches the shape.
  bool Fits() const {
    if (values.size() % element_bytes() != 0) return false;
    const std::uint64_t count = values.size() / element_bytes();
    std::uint64_t expected = 1;
    for (const std::int64_t dim : dims) {
      if (dim < 0) return false;
      if (dim == 0) return count == 0;
      if (expected > count / static_cast<std::uint64_t>(dim)) return false;
      expected *= static_cast<std::uint64_t>(dim);
    }
    return expected == count;
  }
};

void Read(Cursor* cursor, WireOutput* output) {
  const auto numbers = [output](OutputType type) {
    return [output, type](Cursor* at) {
      output->values = at->ReadBytes();
      output->type = type;
    };
  };
  const FieldReader floats{DelimitedTag(3), numbers(OutputType::kFloat32)};
  const FieldReader integers{DelimitedTag(4), numbers(OutputType::kInt64)};
  ReadFields(cursor, Text(1, &output->name), PackedInts(2, &output->dims),
             UnpackedInts(2, &output->dims), floats, integers);
}

struct WireResponse {
  std::vector<WireOutput> outputs;
  std::string_view model;
  std::string_view version;
};

void Read(Cursor* cursor, WireResponse* response) {
  ReadFields(cursor, InnerList(1, &response->outputs), Text(2, &response->model),
             Text(3, &response->version));
}

struct WireError {
  std::int32_t code = 0;
  std::string_view message;
  std::int64_t retry_after_ms = 0;
};

void Read(Cursor* cursor, WireError* error) {
  ReadFields(cursor, Int(1, &error->code), Text(2, &error->message),
             Int(3, &error->retry_after_ms));
}

struct WireSparse {
  SparseInput input;
  std::optional<std::int64_t> id_limit;
};

void Read(Cursor* cursor, WireSparse* sparse) {
  static const std::string kPoolings[] = {"", "sum", "mean", "none"};
  SparseInput& input = sparse->input;
  ReadFields(cursor, Text(1, &input.name), Enum(2, kPoolings, &input.pooling),
             Int(3, &input.weighted), InnerList(4, &input.tables), Int(5, &sparse->id_limit),
             Text(6, &input.strings), Int(7, &input.num_ids), Int(10, &input.max_ids));
}

struct WireVersions {
  std::string_view torch;
  std::string_view fbgemm;
  std::string_view digest;
};

void Read(Cursor* cursor, WireVersions* versions) {
  ReadFields(cursor, Text(2, &versions->torch), Text(3, &versions->fbgemm),
             Text(4, &versions->digest));
}

void Read(Cursor* cursor, ModelMetadata* metadata) {
  Signature& signature = metadata->signature;
  metadata->limits = {0, 0, 0};
  std::vector<WireSparse> sparse;
  WireVersions versions;
  ReadFields(cursor, Text(1, &metadata->model), Text(2, &metadata->version),
             Text(3, &metadata->target), InnerList(4, &signature.dense), InnerList(5, &sparse),
             InnerList(6, &signature.outputs), Inner(7, &metadata->limits), Inner(8, &versions),
             Texts(9, &signature.context), Texts(10, &metadata->deltas));
  for (WireSparse& one : sparse) {
    signature.sparse.push_back(std::move(one.input));
    metadata->id_limits.push_back(one.id_limit);
  }
  metadata->torch_version = versions.torch;
  metadata->fbgemm_version = versions.fbgemm;
  metadata->digest = versions.digest;
}

template <typename T>
void CopyNumbers(std::string_view bytes, std::vector<T>* to) {
  to->resize(bytes.size() / sizeof(T));
  if (!to->empty()) std::memcpy(to->data(), bytes.data(), bytes.size());
}

ClientResult Checked(const WireResponse& message) {
  ClientResponse response;
  response.model = message.model;
  response.version = message.version;
  for (const WireOutput& output : message.outputs) {
    if (!output.Fits()) {
      return ClientError(StatusCode::kInternal, "output '" + std::string(output.name) +
                                                    "': its bytes do not fit its shape");
    }
    ClientOutput& read = response.outputs.emplace_back();
    read.name = output.name;
    read.dims = output.dims;
    read.type = output.type;
    if (output.type == OutputType::kInt64) {
      CopyNumbers(output.values, &read.integers);
    } else {
      CopyNumbers(output.values, &read.values);
    }
  }
  return response;
}

}  // namespace

ClientResult ReadResponse(std::string_view bytes) {
  Cursor cursor(bytes);
  WireResponse message;
  Read(&cursor, &message);
  if (!cursor.ok()) return NoMessage("recsys.v1.PredictResponse");
  return Checked(message);
}

ModelMetadata ReadMetadata(std::string_view bytes) {
  Cursor cursor(bytes);
  ModelMetadata metadata;
  Read(&cursor, &metadata);
  if (!cursor.ok()) throw NoMessage("recsys.v1.ModelMetadata");
  return metadata;
}

StreamAnswer ReadStreamAnswer(std::string_view bytes) {
  Cursor cursor(bytes);
  std::string_view request_id;
  // The last one is used, as in any oneof.
  std::optional<WireResponse> response;
  WireError error;
  const FieldReader answered{DelimitedTag(2),
                             [&](Cursor* at) { ReadInner(at, &response.emplace()); }};
  const FieldReader failed{DelimitedTag(3), [&](Cursor* at) {
                             ReadInner(at, &(error = {}));
                             response.reset();
                           }};
  ReadFields(&cursor, Text(1, &request_id), answered, failed);
  if (!cursor.ok()) throw NoMessage("recsys.v1.StreamResponse");
  if (response) return {std::string(request_id), Checked(*response)};
  const bool is_known = error.code > 0 && error.code <= 16;
  const auto code = is_known ? static_cast<StatusCode>(error.code) : StatusCode::kUnknown;
  const auto retry_after_ms =
      error.retry_after_ms > 0 ? std::optional(error.retry_after_ms) : std::nullopt;
  return {std::string(request_id), ClientError(code, std::string(error.message), retry_after_ms)};
}

}  // namespace recsys::client
