// Tensors sent as typed contents.

#include <algorithm>
#include <cstring>
#include <string>

#include "recsys/error.h"
#include "wire/cursor.h"
#include "wire/infer/infer_request.h"

namespace recsys {
namespace {

// The fields of InferTensorContents, by number.
constexpr const char* kFields[] = {"",
                                   "bool_contents",
                                   "int_contents",
                                   "int64_contents",
                                   "uint_contents",
                                   "uint64_contents",
                                   "fp32_contents",
                                   "fp64_contents",
                                   "bytes_contents"};
constexpr std::uint32_t kInt32 = 2;
constexpr std::uint32_t kInt64 = 3;
constexpr std::uint32_t kFloat = 6;
constexpr std::uint32_t kBytes = 8;

/// Returns the field for a type; 0 if there is none.
std::uint32_t FieldOf(std::string_view datatype) {
  if (datatype == "FP32") return kFloat;
  if (datatype == "INT64") return kInt64;
  return datatype == "INT32" ? kInt32 : 0;
}

/// Visits the values of one field, whose contents may come in several pieces: `packed` is called
/// with many values at a time, `single` with one.
template <typename Packed, typename Single>
void Visit(const InferInput& input, std::uint32_t field, const Packed& packed,
           const Single& single) {
  Cursor tensor(input.message);
  while (tensor.Next()) {
    if (tensor.tag() != DelimitedTag(5)) {
      tensor.Skip();
      continue;
    }
    Cursor contents = tensor.Enter();
    while (contents.Next()) {
      if (contents.tag() == DelimitedTag(field)) {
        packed(contents.ReadBytes());
      } else if (field == kFloat && contents.tag() == Tag(field, WireType::kFixed32)) {
        single(contents.ReadFixed32());
      } else if (field != kFloat && contents.tag() == VarintTag(field)) {
        single(contents.ReadVarint());
      } else {
        contents.Skip();
      }
    }
  }
}

std::size_t CountVarints(std::string_view packed) {
  std::size_t count = 0;
  for (const char c : packed) count += static_cast<unsigned char>(c) < 0x80 ? 1 : 0;
  return count;
}

/// Writes numbers contiguously.
class Filler {
 public:
  Filler(std::uint32_t field, char* to)
      : field_(field), number_bytes_(field == kInt64 ? 8 : 4), to_(to) {}

  void Add(std::uint64_t number) {
    // Like protobuf: of a longer number, the lower bytes are used.
    std::memcpy(to_, &number, number_bytes_);
    to_ += number_bytes_;
  }
  void AddPacked(std::string_view packed) {
    if (field_ != kFloat) {
      while (!packed.empty()) Add(TakeVarint(&packed));
    } else if (!packed.empty()) {
      std::memcpy(to_, packed.data(), packed.size());
      to_ += packed.size();
    }
  }

 private:
  const std::uint32_t field_;
  const std::size_t number_bytes_;
  char* to_;
};

/// Throws Error if values are in the field of another type.
void CheckField(const InferInput& input, std::uint32_t field) {
  if (input.filled != 1U << field) {
    std::string filled;
    for (std::uint32_t i = 1; i < std::size(kFields); ++i) {
      if ((input.filled >> i & 1) == 0) continue;
      if (!filled.empty()) filled += ", ";
      filled += kFields[i];
    }
    throw Error(ErrorKind::kRequest, TensorField(input.tensor.name) + ".contents: got " + filled +
                                         ", expected " + kFields[field] + " for " +
                                         std::string(input.tensor.datatype));
  }
}

/// Returns the contents of a tensor as one message: a field that comes in pieces is one.
std::string_view JoinedContents(const InferInput& input, OwnedBytes* owned) {
  constexpr std::uint32_t kContents = DelimitedTag(5);
  std::size_t num_pieces = 0, num_bytes = 0;
  std::string_view last;
  const auto for_each = [&](auto call) {
    Cursor tensor(input.message);
    while (tensor.Next()) {
      if (tensor.tag() == kContents) {
        call(tensor.ReadBytes());
      } else {
        tensor.Skip();
      }
    }
  };
  for_each([&](std::string_view piece) {
    last = piece;
    num_bytes += piece.size();
    ++num_pieces;
  });
  if (num_pieces <= 1) return last;
  char* const made = owned->Add(num_bytes);
  char* to = made;
  for_each([&](std::string_view piece) { to = std::copy(piece.begin(), piece.end(), to); });
  return {made, num_bytes};
}

}  // namespace

RawTexts TypedTexts(const InferInput& input, OwnedBytes* owned) {
  if (input.filled == 0) return {};
  CheckField(input, kBytes);
  RawTexts texts{JoinedContents(input, owned), 0, &TakeField<kBytes>};
  Cursor contents(texts.bytes);
  while (contents.Next()) {
    if (contents.tag() == DelimitedTag(kBytes)) ++texts.num_texts;
    contents.Skip();
  }
  return texts;
}

std::string_view TypedContents(const InferInput& input, OwnedBytes* owned) {
  const std::uint32_t field = FieldOf(input.tensor.datatype);
  // If the type is not supported, or values are missing, the tensor's checks report it.
  if (field == 0 || input.filled == 0) return {};
  CheckField(input, field);
  std::size_t num_bytes = 0;
  std::size_t num_pieces = 0;
  std::string_view last;
  const std::size_t number_bytes = field == kInt64 ? 8 : 4;
  Visit(
      input, field,
      [&](std::string_view packed) {
        num_bytes += field == kFloat ? packed.size() : CountVarints(packed) * number_bytes;
        last = packed;
        ++num_pieces;
      },
      [&](std::uint64_t) {
        num_bytes += number_bytes;
        ++num_pieces;
      });
  // Packed floats already have the model's layout.
  if (field == kFloat && num_pieces == 1 && last.size() == num_bytes) return last;
  char* const made = owned->Add(num_bytes);
  Filler filler(field, made);
  Visit(
      input, field, [&](std::string_view packed) { filler.AddPacked(packed); },
      [&](std::uint64_t number) { filler.Add(number); });
  return {made, num_bytes};
}

}  // namespace recsys
