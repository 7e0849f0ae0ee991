#ifndef RECSYS_OPS_KERNELS_KERNELS_H_
#define RECSYS_OPS_KERNELS_KERNELS_H_

#include <algorithm>
#include <cstdint>

#include "ops/cpu/isa.h"
#include "ops/kinds.h"
#include "ops/packed.h"

namespace recsys::ops {

/// Floats in rows: row r begins at data + r * stride.
struct Rows {
  const float* data = nullptr;
  std::int64_t stride = 0;
};
struct OutRows {
  float* data = nullptr;
  std::int64_t stride = 0;
};

/// FBGEMM's codes for the types of stored rows (recsys/rows/format.py).
enum class RowType : std::int32_t { kFloat32 = 0, kFloat16 = 1, kInt8 = 2, kInt4 = 3, kInt2 = 4 };

/// FBGEMM's codes for what becomes of a bag's rows.
enum class Pooling : std::int32_t { kSum = 0, kMean = 1, kNone = 2 };

/// Returns the bytes of a stored row.
constexpr std::int64_t RowBytes(RowType type, std::int64_t dim) {
  switch (type) {
    case RowType::kFloat32:
      return 4 * dim;
    case RowType::kFloat16:
      return 2 * dim;
    case RowType::kInt8:
      return 4 + dim;
    case RowType::kInt4:
      return 4 + dim / 2;
    default:
      return 4 + dim / 4;
  }
}

/// A slot's last_id where IDs stay as they are.
constexpr std::uint64_t kAnyId = ~std::uint64_t{0};

/// One slot of a lookup: a feature in a table.
struct Slot {
  const std::uint8_t* rows = nullptr;
  /// IDs from here on are out of range.
  std::uint64_t num_rows = 0;
  RowType type = RowType::kInt8;
  std::int64_t dim = 0;
  /// Where its columns begin in a row of outputs.
  std::int64_t column = 0;
  /// IDs are taken modulo this number, unless it is 0.
  std::int64_t modulus = 0;
  /// Whether IDs are mixed before.
  bool is_mixed = false;
  /// IDs above it, and negative ones, read this row instead.
  std::uint64_t last_id = kAnyId;
  /// Whose bags it reads.
  std::int64_t feature = 0;
};

/// Returns the mixed ID of recsys/base/hashing.py: MurmurHash3's fmix64 (Austin Appleby, public
/// domain) without the highest bit.
constexpr std::uint64_t MixedId(std::uint64_t id) {
  id = (id ^ id >> 33) * 0xFF51AFD7ED558CCD;
  id = (id ^ id >> 33) * 0xC4CEB9FE1A85EC53;
  return (id ^ id >> 33) & ~std::uint64_t{0} >> 1;
}

/// Returns the row that an ID reads; not below num_rows if the ID is out of range.
inline std::uint64_t RowOfId(const Slot& slot, std::int64_t id) {
  auto row = static_cast<std::uint64_t>(id);
  if (slot.is_mixed) {
    row = MixedId(row) % static_cast<std::uint64_t>(slot.modulus);
  } else if (slot.modulus > 0) {
    const std::int64_t rest = id % slot.modulus;
    row = static_cast<std::uint64_t>(rest < 0 ? rest + slot.modulus : rest);
  }
  return std::min(row, slot.last_id);
}

/// What to look up, for bags `first_bag` to `end_bag` of each slot.
struct Lookup {
  const Slot* slots = nullptr;
  std::int64_t num_slots = 0;
  /// Bags of each feature.
  std::int64_t num_bags = 0;
  const std::int64_t* ids = nullptr;
  /// Feature by feature; one more than bags.
  const std::int64_t* offsets = nullptr;
  /// Null if each ID counts once.
  const float* weights = nullptr;
  Pooling pooling = Pooling::kSum;
  std::int64_t first_bag = 0;
  std::int64_t end_bag = 0;
  /// By slot, where the row of each ID of its feature lies, from the feature's first ID on; null of
  /// a slot whose IDs say so. Null if all do.
  const std::uint8_t* const* const* found = nullptr;
};

/// Returns where the bags of a slot begin and end.
inline const std::int64_t* OffsetsOf(const Lookup& lookup, const Slot& slot) {
  return lookup.offsets + slot.feature * lookup.num_bags;
}

/// Returns the number of IDs in the bags of all slots.
std::int64_t NumIds(const Lookup& lookup);

/// The vectors of a row whose pairs are multiplied.
struct VectorsShape {
  std::int64_t num_vectors = 0;
  std::int64_t dim = 0;
};

struct Elementwise {
  ElementwiseKind kind = ElementwiseKind::kCopy;
  Rows a, b, c;
  std::int64_t num_rows = 0;
  /// Numbers of a row of outputs.
  std::int64_t width = 0;
  std::int64_t count = 1;
  float factor = 1;
};

/// Where the numbers of a row lie: number i of a loop is `stride` behind number i - 1.
constexpr int kLoops = 4;
struct Strides {
  std::int64_t out[kLoops] = {}, a[kLoops] = {}, b[kLoops] = {};
};

/// Loops over the numbers of a row, within each other. Those of sums of products are G, M, N and K:
/// out[g, m, n] = the sum over k of a[g, m, k] * b[g, k, n].
struct Form {
  float factor = 0;
  std::int64_t sizes[kLoops] = {1, 1, 1, 1};
  Strides strides;
};

/// A step by a form.
struct Formed {
  const Form* form = nullptr;
  ElementwiseKind kind = ElementwiseKind::kCopy;
  Rows a, b;
  std::int64_t num_rows = 0;
};

/// Rows to fetch into the cache while something else is computed.
struct Ahead {
  const std::uint8_t* const* rows = nullptr;
  std::int64_t num_rows = 0;
  std::int64_t row_bytes = 0;
  /// How many at a time.
  std::int64_t at_once = 1;
};

/// Groups of inputs that a linear layer multiplies between two times that it fetches some.
constexpr std::int64_t kGroupsBetween = 64;

/// Returns about how often a linear layer fetches some.
constexpr std::int64_t NumFetches(std::int64_t num_groups, std::int64_t num_outputs,
                                  std::int64_t num_rows) {
  const std::int64_t num_blocks =
      num_rows == 1 ? (num_outputs + 127) / 128 : (num_outputs + 31) / 32 * ((num_rows + 11) / 12);
  return num_blocks * ((num_groups + kGroupsBetween - 1) / kGroupsBetween);
}

/// Pointers that may be read behind the rows of a lookup.
constexpr std::int64_t kRowsAhead = 16;

/// The kernels for one instruction set. They check nothing, and compute each row by itself: its
/// bits do not depend on the rows beside it.
struct Kernels {
  /// out[r] = activation(in[r] · weights + bias) for num_rows rows of K and N floats.
  /// Fetches some of `ahead` meanwhile, which may be null.
  void (*linear)(const Packed& weights, Rows in, std::int64_t num_rows, Activation activation,
                 OutRows out, Ahead* ahead);
  /// Writes, for each row of vectors that follow each other, the products of each pair (i, j) of
  /// them, i < j, ordered by i and then by j. `type`: float32, or bfloat16 to which the numbers are
  /// rounded.
  void (*dot)(WeightType type, Rows in, std::int64_t num_rows, VectorsShape shape, OutRows out);
  /// Writes where the rows of all IDs of a lookup lie, slot by slot. Returns the position of the
  /// first ID out of range; -1 if there is none.
  std::int64_t (*find)(const Lookup& lookup, const std::uint8_t** rows);
  /// Looks up what was found: row b of `out` takes the bags first_bag + b of all slots; without
  /// pooling, row i takes ID i. kRowsAhead more pointers may be read, and the rows there fetched.
  void (*pool)(const Lookup& lookup, const std::uint8_t* const* rows, OutRows out);
  /// `out` may be one of the inputs.
  void (*elementwise)(const Elementwise& step, OutRows out);
  /// Sums of products, and two operands number by number. `out` is none of the inputs.
  void (*contract)(const Formed& step, OutRows out);
  void (*broadcast)(const Formed& step, OutRows out);
};

const Kernels& PlainKernels();
#if defined(__x86_64__)
const Kernels& Avx2Kernels();
const Kernels& Avx512Kernels() noexcept;
/// Linear layers in bfloat16 and int8 by tiles, all else as Avx512Kernels().
const Kernels& AmxKernels();
/// The same on processors that have AVX-512 only: what each tile instruction does in plain C++.
/// Slow, for checks.
const Kernels& EmulatedAmxKernels();
#elif defined(__aarch64__)
const Kernels& NeonKernels();
const Kernels& DotprodKernels();
const Kernels& I8mmKernels();
#endif

/// Returns those of ChosenIsa().
const Kernels& ChosenKernels();

}  // namespace recsys::ops

#endif  // RECSYS_OPS_KERNELS_KERNELS_H_
