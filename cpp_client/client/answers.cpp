#include "client/answers.h"

#include <cstring>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "wire/cursor.h"

namespace recsys::client {
namespace {

ClientError NoMessage(const char* name) {
  return ClientError(StatusCode::kInternal, std::string("the server's answer is no ") + name);
}

std::int64_t ReadInt(Cursor* cursor) { return static_cast<std::int64_t>(cursor->ReadVarint()); }

/// Appends what a packed field of integers holds.
void AppendPacked(Cursor* cursor, std::vector<std::int64_t>* numbers) {
  std::string_view packed = cursor->ReadBytes();
  if (!AreVarints(packed)) return cursor->Fail();
  while (!packed.empty()) numbers->push_back(static_cast<std::int64_t>(TakeVarint(&packed)));
}

void Read(Cursor* cursor, DenseInput* input) {
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case DelimitedTag(1):
        input->name = cursor->ReadText();
        break;
      case VarintTag(2):
        input->width = ReadInt(cursor);
        break;
      default:
        cursor->Skip();
    }
  }
}

void Read(Cursor* cursor, TableUse* table) {
  static constexpr IdPolicy kPolicies[] = {IdPolicy::kReject, IdPolicy::kReject, IdPolicy::kHash,
                                           IdPolicy::kZero, IdPolicy::kMapped};
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case DelimitedTag(1):
        table->name = cursor->ReadText();
        break;
      case VarintTag(2):
        table->num_embeddings = ReadInt(cursor);
        break;
      case VarintTag(3): {
        const std::uint64_t policy = cursor->ReadVarint();
        table->id_policy = policy < std::size(kPolicies) ? kPolicies[policy] : IdPolicy::kReject;
        break;
      }
      default:
        cursor->Skip();
    }
  }
}

void Read(Cursor* cursor, recsys::Output* output) {
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case DelimitedTag(1):
        output->name = cursor->ReadText();
        break;
      case DelimitedTag(2):
        AppendPacked(cursor, &output->shape);
        break;
      case VarintTag(2):
        output->shape.push_back(ReadInt(cursor));
        break;
      default:
        cursor->Skip();
    }
  }
}

void Read(Cursor* cursor, RequestLimits* limits) {
  *limits = {0, 0, 0};
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case VarintTag(1):
        limits->max_rows = ReadInt(cursor);
        break;
      case VarintTag(2):
        limits->max_ids = ReadInt(cursor);
        break;
      case VarintTag(3):
        limits->max_bytes = ReadInt(cursor);
        break;
      default:
        cursor->Skip();
    }
  }
}

/// Reads a message within another one.
template <typename Message>
Message ReadInner(Cursor* cursor) {
  Cursor inner = cursor->Enter();
  Message message{};
  Read(&inner, &message);
  cursor->Leave(inner);
  return message;
}

/// An Output as it is on the wire: nothing of it is trusted.
struct WireOutput {
  std::string_view name;
  std::vector<std::int64_t> dims;
  std::string_view values;

  /// Whether there are as many numbers as the shape says.
  bool Fits() const {
    if (values.size() % sizeof(float) != 0) return false;
    const std::uint64_t count = values.size() / sizeof(float);
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
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case DelimitedTag(1):
        output->name = cursor->ReadText();
        break;
      case DelimitedTag(2):
        AppendPacked(cursor, &output->dims);
        break;
      case VarintTag(2):
        output->dims.push_back(ReadInt(cursor));
        break;
      case DelimitedTag(3):
        output->values = cursor->ReadBytes();
        break;
      default:
        cursor->Skip();
    }
  }
}

struct WireResponse {
  std::vector<WireOutput> outputs;
  std::string_view model;
  std::string_view version;
};

void Read(Cursor* cursor, WireResponse* response) {
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case DelimitedTag(1):
        response->outputs.push_back(ReadInner<WireOutput>(cursor));
        break;
      case DelimitedTag(2):
        response->model = cursor->ReadText();
        break;
      case DelimitedTag(3):
        response->version = cursor->ReadText();
        break;
      default:
        cursor->Skip();
    }
  }
}

struct WireError {
  std::int32_t code = 0;
  std::string_view message;
  std::int64_t retry_after_ms = 0;
};

void Read(Cursor* cursor, WireError* error) {
  while (cursor->Next()) {
    switch (cursor->tag()) {
      // As protobuf has it: of more than 32 bits the lower ones count.
      case VarintTag(1):
        error->code = static_cast<std::int32_t>(cursor->ReadVarint());
        break;
      case DelimitedTag(2):
        error->message = cursor->ReadText();
        break;
      case VarintTag(3):
        error->retry_after_ms = ReadInt(cursor);
        break;
      default:
        cursor->Skip();
    }
  }
}

struct WireSparse {
  SparseInput input;
  std::optional<std::int64_t> id_limit;
};

void Read(Cursor* cursor, WireSparse* sparse) {
  static constexpr const char* kPoolings[] = {"", "sum", "mean", "none"};
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case DelimitedTag(1):
        sparse->input.name = cursor->ReadText();
        break;
      case VarintTag(2): {
        const std::uint64_t pooling = cursor->ReadVarint();
        sparse->input.pooling = pooling < std::size(kPoolings) ? kPoolings[pooling] : "";
        break;
      }
      case VarintTag(3):
        sparse->input.weighted = cursor->ReadVarint() != 0;
        break;
      case DelimitedTag(4):
        sparse->input.tables.push_back(ReadInner<TableUse>(cursor));
        break;
      case VarintTag(5):
        sparse->id_limit = ReadInt(cursor);
        break;
      default:
        cursor->Skip();
    }
  }
}

/// ArtifactVersions.
void ReadArtifact(Cursor* cursor, ModelMetadata* metadata) {
  Cursor inner = cursor->Enter();
  while (inner.Next()) {
    switch (inner.tag()) {
      case DelimitedTag(2):
        metadata->torch_version = inner.ReadText();
        break;
      case DelimitedTag(3):
        metadata->fbgemm_version = inner.ReadText();
        break;
      case DelimitedTag(4):
        metadata->digest = inner.ReadText();
        break;
      default:
        inner.Skip();
    }
  }
  cursor->Leave(inner);
}

void Read(Cursor* cursor, ModelMetadata* metadata) {
  Signature& signature = metadata->signature;
  metadata->limits = {0, 0, 0};
  while (cursor->Next()) {
    switch (cursor->tag()) {
      case DelimitedTag(1):
        metadata->model = cursor->ReadText();
        break;
      case DelimitedTag(2):
        metadata->version = cursor->ReadText();
        break;
      case DelimitedTag(3):
        metadata->target = cursor->ReadText();
        break;
      case DelimitedTag(4):
        signature.dense.push_back(ReadInner<DenseInput>(cursor));
        break;
      case DelimitedTag(5): {
        WireSparse sparse = ReadInner<WireSparse>(cursor);
        signature.sparse.push_back(std::move(sparse.input));
        metadata->id_limits.push_back(sparse.id_limit);
        break;
      }
      case DelimitedTag(6):
        signature.outputs.push_back(ReadInner<recsys::Output>(cursor));
        break;
      case DelimitedTag(7):
        metadata->limits = ReadInner<RequestLimits>(cursor);
        break;
      case DelimitedTag(8):
        ReadArtifact(cursor, metadata);
        break;
      case DelimitedTag(9):
        signature.context.emplace_back(cursor->ReadText());
        break;
      case DelimitedTag(10):
        metadata->deltas.emplace_back(cursor->ReadText());
        break;
      default:
        cursor->Skip();
    }
  }
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
    read.values.resize(output.values.size() / sizeof(float));
    if (!read.values.empty()) {
      std::memcpy(read.values.data(), output.values.data(), output.values.size());
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
  std::optional<WireResponse> response;
  WireError error;
  while (cursor.Next()) {
    switch (cursor.tag()) {
      case DelimitedTag(1):
        request_id = cursor.ReadText();
        break;
      case DelimitedTag(2):
        response = ReadInner<WireResponse>(&cursor);
        break;
      case DelimitedTag(3):
        error = ReadInner<WireError>(&cursor);
        response.reset();
        break;
      default:
        cursor.Skip();
    }
  }
  if (!cursor.ok()) throw NoMessage("recsys.v1.StreamResponse");
  if (response) return {std::string(request_id), Checked(*response)};
  const bool is_known = error.code > 0 && error.code <= 16;
  const auto code = is_known ? static_cast<StatusCode>(error.code) : StatusCode::kUnknown;
  const auto retry_after_ms =
      error.retry_after_ms > 0 ? std::optional(error.retry_after_ms) : std::nullopt;
  return {std::string(request_id), ClientError(code, std::string(error.message), retry_after_ms)};
}

}  // namespace recsys::client
