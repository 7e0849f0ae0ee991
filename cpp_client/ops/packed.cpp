#include "ops/packed.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace recsys::ops {
namespace {

constexpr std::uint32_t kMagic = 0x4e4c5352;  // "RSLN"
constexpr std::uint32_t kVersion = 1;
constexpr float kMaxInt8 = 127;
// The scale of a column of zeros, to which any fits.
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

/// Writes the weights of one panel's columns, of which `weight` is the first's: `item_of` makes
/// them from a column and its number.
template <typename Item, typename ItemOf>
void PackPanel(const float* weight, std::int64_t num_inputs, std::int64_t num_columns,
               ItemOf item_of, char* panel) {
  constexpr std::int64_t kGroup = 4 / sizeof(Item);
  for (std::int64_t first = 0; first < num_inputs; first += kGroup, panel += kGroupBytes) {
    Item items[kPanelColumns * kGroup] = {};
    const std::int64_t num_items = std::min(kGroup, num_inputs - first);
    for (std::int64_t column = 0; column < num_columns; ++column) {
      const float* const from = weight + column * num_inputs + first;
      for (std::int64_t i = 0; i < num_items; ++i) {
        items[column * kGroup + i] = item_of(column, from[i]);
      }
    }
    std::memcpy(panel, items, sizeof(items));
  }
}

float RoundedToBfloat16(float value) {
  const std::uint32_t bits = std::uint32_t{ToBfloat16(value)} << 16;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Packs a layer as `type`. `is_rounded`: float32 is rounded to bfloat16. Calls `between` between
/// two panels, if there is one.
void PackAs(void* to, const FloatLayer& layer, WeightType type, bool is_rounded,
            void (*between)()) {
  const auto [weight, bias, num_outputs, num_inputs] = layer;
  Header header;
  header.type = static_cast<std::uint32_t>(type);
  header.num_inputs = static_cast<std::uint32_t>(num_inputs);
  header.num_outputs = static_cast<std::uint32_t>(num_outputs);
  char* const data = static_cast<char*>(to);
  std::memcpy(data, &header, sizeof(header));
  const Packed packed = Placed(data, type, num_inputs, num_outputs);
  char* const panels = data + sizeof(header);
  char* const vectors = panels + packed.num_panels() * packed.panel_bytes();
  const std::int64_t vector_bytes = packed.num_panels() * kPanelColumns * 4;
  std::memset(vectors, 0, static_cast<std::size_t>(vector_bytes * (IsWhole(type) ? 3 : 1)));
  for (std::int64_t n = 0; n < num_outputs; n += kPanelColumns) {
    if (between != nullptr) between();
    const float* const rows = weight + n * num_inputs;
    char* const panel = panels + n / kPanelColumns * packed.panel_bytes();
    const std::int64_t num_columns = std::min(kPanelColumns, num_outputs - n);
    if (bias != nullptr) {
      std::memcpy(vectors + n * 4, bias + n, static_cast<std::size_t>(num_columns) * 4);
    }
    if (type == WeightType::kBfloat16) {
      PackPanel<std::uint16_t>(
          rows, num_inputs, num_columns,
          [](std::int64_t, float value) { return ToBfloat16(value); }, panel);
    } else if (!IsWhole(type)) {
      PackPanel<float>(
          rows, num_inputs, num_columns,
          [is_rounded](std::int64_t, float value) {
            return is_rounded ? RoundedToBfloat16(value) : value;
          },
          panel);
    } else {
      float scales[kPanelColumns] = {};
      std::int32_t sums[kPanelColumns] = {};
      for (std::int64_t i = 0; i < num_columns; ++i) {
        const float largest = LargestOf(rows + i * num_inputs, num_inputs);
        scales[i] = std::max(largest / kMaxInt8, kLeastScale);
      }
      const auto whole = [&scales, &sums](std::int64_t column, float value) {
        const auto number = static_cast<std::int16_t>(std::nearbyint(value / scales[column]));
        sums[column] += number;
        return number;
      };
      if (type == WeightType::kInt16) {
        PackPanel<std::int16_t>(rows, num_inputs, num_columns, whole, panel);
      } else {
        PackPanel<std::int8_t>(
            rows, num_inputs, num_columns,
            [&whole](std::int64_t column, float value) {
              return static_cast<std::int8_t>(whole(column, value));
            },
            panel);
      }
      const std::size_t num_bytes = static_cast<std::size_t>(num_columns) * 4;
      std::memcpy(vectors + vector_bytes + n * 4, scales, num_bytes);
      std::memcpy(vectors + 2 * vector_bytes + n * 4, sums, num_bytes);
    }
  }
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
  PackAs(data.data(), {weight, bias, num_outputs, num_inputs}, type, /*is_rounded=*/false, nullptr);
  return data;
}

WeightType PackedTypeFor(WeightType type, Isa isa) {
  if (type == WeightType::kBfloat16 && !MultipliesBfloat16(isa)) return WeightType::kFloat32;
  return type == WeightType::kInt8 && isa == Isa::kAvx2 ? WeightType::kInt16 : type;
}

void PackTo(void* data, const FloatLayer& layer, WeightType type, Isa isa, void (*between)()) {
  PackAs(data, layer, PackedTypeFor(type, isa), type == WeightType::kBfloat16, between);
}

std::vector<char> PackFor(Isa isa, const float* weight, const float* bias, std::int64_t num_outputs,
                          std::int64_t num_inputs, WeightType type) {
  std::vector<char> data(
      static_cast<std::size_t>(PackedBytes(PackedTypeFor(type, isa), num_inputs, num_outputs)));
  PackTo(data.data(), {weight, bias, num_outputs, num_inputs}, type, isa);
  return data;
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
