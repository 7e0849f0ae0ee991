#include "ops/packed.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace recsys::ops {
namespace {

constexpr std::uint32_t kMagic = 0x4e4c5352;  // "RSLN"
constexpr std::uint32_t kVersion = 1;
constexpr float kMaxInt8 = 127;
// Of a column of zeros: any scale gives the right products.
constexpr float kLeastScale = 1e-30F;

/// At the front, padded to a cache line.
struct Header {
  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t type = 0;
  std::uint32_t num_inputs = 0;
  std::uint32_t num_outputs = 0;
  std::uint32_t unused[11] = {};
};
static_assert(sizeof(Header) == 64);

Packed Placed(const char* data, WeightType type, std::int64_t num_inputs,
              std::int64_t num_outputs) {
  Packed packed;
  packed.type = type;
  packed.num_inputs = num_inputs;
  packed.num_outputs = num_outputs;
  packed.panels = data + sizeof(Header);
  const std::int64_t num_columns = packed.num_panels() * kPanelColumns;
  const char* const bias = packed.panels + packed.num_panels() * packed.panel_bytes();
  packed.bias = reinterpret_cast<const float*>(bias);
  if (IsWhole(type)) {
    packed.scale = packed.bias + num_columns;
    packed.sum = reinterpret_cast<const std::int32_t*>(packed.scale + num_columns);
  }
  return packed;
}

float LargestOf(const float* values, std::int64_t count) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

}  // namespace

std::uint16_t ToBfloat16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::int64_t PackedBytes(WeightType type, std::int64_t num_inputs, std::int64_t num_outputs) {
  Packed shape;
  shape.type = type;
  shape.num_inputs = num_inputs;
  shape.num_outputs = num_outputs;
  const std::int64_t vectors = IsWhole(type) ? 3 : 1;
  return static_cast<std::int64_t>(sizeof(Header)) +
         shape.num_panels() * (shape.panel_bytes() + vectors * 4 * kPanelColumns);
}

std::vector<char> Pack(const float* weight, const float* bias, std::int64_t num_outputs,
                       std::int64_t num_inputs, WeightType type) {
  std::vector<char> data(static_cast<std::size_t>(PackedBytes(type, num_inputs, num_outputs)));
  Header header;
  header.type = static_cast<std::uint32_t>(type);
  header.num_inputs = static_cast<std::uint32_t>(num_inputs);
  header.num_outputs = static_cast<std::uint32_t>(num_outputs);
  std::memcpy(data.data(), &header, sizeof(header));
  const Packed packed = Placed(data.data(), type, num_inputs, num_outputs);
  const std::int64_t group = GroupOf(type), item = 4 / group;
  const auto put = [&data](const void* where, const auto& value) {
    std::memcpy(data.data() + (static_cast<const char*>(where) - data.data()), &value,
                sizeof(value));
  };
  for (std::int64_t n = 0; n < num_outputs; ++n) {
    const float* const row = weight + n * num_inputs;
    const float scale = std::max(LargestOf(row, num_inputs) / kMaxInt8, kLeastScale);
    std::int32_t sum = 0;
    const char* const panel = packed.panels + n / kPanelColumns * packed.panel_bytes();
    for (std::int64_t k = 0; k < num_inputs; ++k) {
      const char* const at =
          panel + k / group * kGroupBytes + (n % kPanelColumns * group + k % group) * item;
      if (type == WeightType::kFloat32) {
        put(at, row[k]);
      } else if (type == WeightType::kBfloat16) {
        put(at, ToBfloat16(row[k]));
      } else {
        const auto whole = static_cast<std::int16_t>(std::nearbyint(row[k] / scale));
        sum += whole;
        if (type == WeightType::kInt16) {
          put(at, whole);
        } else {
          put(at, static_cast<std::int8_t>(whole));
        }
      }
    }
    if (bias != nullptr) put(packed.bias + n, bias[n]);
    if (IsWhole(type)) {
      put(packed.scale + n, scale);
      put(packed.sum + n, sum);
    }
  }
  return data;
}

WeightType PackedTypeFor(WeightType type, Isa isa) {
  if (type == WeightType::kBfloat16 && !MultipliesBfloat16(isa)) return WeightType::kFloat32;
  return type == WeightType::kInt8 && isa == Isa::kAvx2 ? WeightType::kInt16 : type;
}

std::vector<char> PackFor(Isa isa, const float* weight, const float* bias, std::int64_t num_outputs,
                          std::int64_t num_inputs, WeightType type) {
  const WeightType packed = PackedTypeFor(type, isa);
  if (type != WeightType::kBfloat16 || packed == type) {
    return Pack(weight, bias, num_outputs, num_inputs, packed);
  }
  std::vector<float> rounded(static_cast<std::size_t>(num_outputs * num_inputs));
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    const std::uint32_t bits = std::uint32_t{ToBfloat16(weight[i])} << 16;
    std::memcpy(&rounded[i], &bits, sizeof(bits));
  }
  return Pack(rounded.data(), bias, num_outputs, num_inputs, packed);
}

std::string ReadPacked(const void* data, std::int64_t size, Packed* packed) {
  Header header;
  if (size < static_cast<std::int64_t>(sizeof(header))) {
    return "got " + std::to_string(size) + " bytes, expected packed weights";
  }
  std::memcpy(&header, data, sizeof(header));
  if (header.magic != kMagic) return "got bytes that are no packed weights";
  if (header.version != kVersion) {
    return "got packed weights of version " + std::to_string(header.version) + ", expected " +
           std::to_string(kVersion);
  }
  if (header.type > static_cast<std::uint32_t>(WeightType::kInt16) ||
      !IsPackable(header.num_outputs, header.num_inputs)) {
    return "got packed weights with a wrong header";
  }
  const auto type = static_cast<WeightType>(header.type);
  const std::int64_t expected = PackedBytes(type, header.num_inputs, header.num_outputs);
  if (size != expected) {
    return "got " + std::to_string(size) + " bytes of packed weights, expected " +
           std::to_string(expected);
  }
  if (reinterpret_cast<std::uintptr_t>(data) % 64 != 0) {
    return "got packed weights that are not aligned to 64 bytes";
  }
  *packed = Placed(static_cast<const char*>(data), type, header.num_inputs, header.num_outputs);
  return {};
}

}  // namespace recsys::ops
