#ifndef RECSYS_OPS_PACKED_H_
#define RECSYS_OPS_PACKED_H_

// The weights of a linear layer in the order in which kernels read them, as bytes that can be
// saved. The same bytes serve every processor; PackFor chooses those that are fastest on one.
//
// N outputs, K inputs. Columns (outputs) are taken 32 at a time as a panel; within a panel, groups
// of 1, 2 or 4 inputs (float32; bfloat16 and int16; int8: four bytes) follow each other, each with
// its 32 columns. After the header and the panels come the float32 bias, and for whole numbers the
// float32 scale and the int32 sum of the weights of each column; all padded with zeros to whole
// panels.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/cpu/isa.h"

namespace recsys::ops {

/// kInt16: the numbers of int8, in 16 bits. The same products, and so the same bits.
enum class WeightType : std::uint32_t { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2, kInt16 = 3 };

/// Whether weights are whole numbers, with a scale for each column.
constexpr bool IsWhole(WeightType type) {
  return type == WeightType::kInt8 || type == WeightType::kInt16;
}

constexpr std::int64_t kPanelColumns = 32;
/// Bytes of one group of inputs of a panel.
constexpr std::int64_t kGroupBytes = 4 * kPanelColumns;
/// Larger layers could overflow the int32 sums of int8 products.
constexpr std::int64_t kMaxInputs = 1 << 16;
constexpr std::int64_t kMaxOutputs = 1 << 20;

/// Inputs of a group.
constexpr std::int64_t GroupOf(WeightType type) {
  return type == WeightType::kFloat32 ? 1 : type == WeightType::kInt8 ? 4 : 2;
}

/// Whether weights of this shape can be packed.
constexpr bool IsPackable(std::int64_t num_outputs, std::int64_t num_inputs) {
  return num_outputs >= 1 && num_outputs <= kMaxOutputs && num_inputs >= 1 &&
         num_inputs <= kMaxInputs;
}

/// Packed weights in memory that somebody else owns.
struct Packed {
  WeightType type = WeightType::kFloat32;
  std::int64_t num_inputs = 0;
  std::int64_t num_outputs = 0;
  const char* panels = nullptr;
  const float* bias = nullptr;
  /// Null unless whole numbers.
  const float* scale = nullptr;
  const std::int32_t* sum = nullptr;

  std::int64_t num_groups() const { return (num_inputs + GroupOf(type) - 1) / GroupOf(type); }
  std::int64_t num_panels() const { return (num_outputs + kPanelColumns - 1) / kPanelColumns; }
  std::int64_t panel_bytes() const { return num_groups() * kGroupBytes; }
};

/// Returns the size of packed weights.
std::int64_t PackedBytes(WeightType type, std::int64_t num_inputs, std::int64_t num_outputs);

/// The weights of a linear layer, row-major [N, K], and its bias [N], which may be null.
struct FloatLayer {
  const float* weight = nullptr;
  const float* bias = nullptr;
  std::int64_t num_outputs = 0;
  std::int64_t num_inputs = 0;
};

/// Packs a layer.
std::vector<char> Pack(const float* weight, const float* bias, std::int64_t num_outputs,
                       std::int64_t num_inputs, WeightType type);

/// Returns the type in which weights of a type are packed for an instruction set: those in bfloat16
/// as float32 where no instruction multiplies bfloat16 faster, which would cost more than twice the
/// bytes do; for AVX2 those in int8 as int16. Its instruction for bytes adds two products in 16
/// bits, where 2 * 255 * 127 has no place: to be exact, it would need as many instructions, and
/// more of those that multiply.
WeightType PackedTypeFor(WeightType type, Isa isa);

/// Packs weights of a type as PackedTypeFor says, into `data` of so many PackedBytes. As float32,
/// those in bfloat16 are rounded to it all the same; inputs are not. Calls `between` every 16
/// columns, so that the caller can let other threads run.
void PackTo(void* data, const FloatLayer& layer, WeightType type, Isa isa,
            void (*between)() = nullptr);

/// The same, into bytes of its own.
std::vector<char> PackFor(Isa isa, const float* weight, const float* bias, std::int64_t num_outputs,
                          std::int64_t num_inputs, WeightType type);

/// Reads packed weights of `size` bytes, 64-byte aligned. Returns an error text, empty if they are
/// right.
std::string ReadPacked(const void* data, std::int64_t size, Packed* packed);

/// Rounds to the nearest bfloat16, ties to even.
std::uint16_t ToBfloat16(float value);

}  // namespace recsys::ops

#endif  // RECSYS_OPS_PACKED_H_
