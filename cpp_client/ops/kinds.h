#ifndef RECSYS_OPS_KINDS_H_
#define RECSYS_OPS_KINDS_H_

// Written by python -m export.lower.kinds: change the kinds there.

#include <cstdint>

namespace recsys::ops {

/// Where the rows of a buffer are.
enum class BufferKind : std::int64_t {
  kInput = 0,
  kConstant = 1,
  kScratch = 2,
  kOutput = 3,
  /// In scratch memory, a row for each ID: of the steps after EACH_ID alone.
  kIds = 4,
};
constexpr std::int64_t kNumBufferKind = 5;

/// Which rows of a bag a sequence has.
enum class SequenceOrder : std::int64_t {
  /// The first ones.
  kFirst = 0,
  /// The last ones, from the last on.
  kBackwards = 1,
  /// The last ones, in their order.
  kRecent = 2,
};
constexpr std::int64_t kNumSequenceOrder = 3;

/// What a step does.
enum class StepKind : std::int64_t {
  /// Pooled rows of tables.
  kLookup = 0,
  /// A linear layer over each of the vectors of a row, and its activation.
  kLinear = 1,
  /// The products of all pairs of vectors.
  kDot = 2,
  /// Numbers one by one.
  kElementwise = 3,
  /// Sums of products by a form.
  kContract = 4,
  /// Two operands number by number by a form.
  kBroadcast = 5,
  /// The rows of some of a bag's IDs, in the order of `extra`, and zeros behind them.
  kSequence = 6,
  /// The number of a bag's IDs.
  kLength = 7,
  /// ID i less ID j of a bag's first IDs, for each pair; those that are missing are 0.
  kDifferences = 8,
  /// Vectors of b by the numbers in a, which are bounded to those that are there.
  kTake = 9,
  /// The next `index` steps for as many IDs of a row as a says, at most `extra`; or for all.
  kEachId = 10,
  /// For each ID its row's a, or the vector of its place there.
  kToIds = 11,
  /// What was computed for each ID, side by side in its row.
  kFromIds = 12,
  /// The row of each ID.
  kReadIds = 13,
  /// Adds what was computed for each ID to its row.
  kSumIds = 14,
  /// Bounds the next step to the first places of each row: as many as a says, of `extra`.
  kFirst = 15,
  /// The same for pairs of places.
  kFirstPairs = 16,
};
constexpr std::int64_t kNumStepKind = 17;

/// What follows a linear layer in its step.
enum class Activation : std::int32_t {
  kNone = 0,
  kRelu = 1,
  kSigmoid = 2,
};
constexpr std::int64_t kNumActivation = 3;

/// Which numbers a step takes to compute those of a row.
enum class Operands : std::int32_t {
  /// a, number by number.
  kOne = 0,
  /// a, each number `count` times, and b, number by number.
  kRepeated = 1,
  /// a, b and c, number by number.
  kThree = 2,
  /// Each `count` numbers of a, for one.
  kRuns = 3,
  /// `count` vectors of a, for one.
  kVectors = 4,
  /// `count` runs of a, as wide.
  kShares = 5,
  /// All numbers of a, as wide.
  kRow = 6,
  /// Vectors of a; b and c have a vector's numbers.
  kLayers = 7,
  /// As many numbers of a for each of b and c.
  kGroups = 8,
  /// By a form alone.
  kForm = 9,
};
constexpr std::int64_t kNumOperands = 10;

/// What becomes of the numbers of a row.
enum class ElementwiseKind : std::int32_t {
  kCopy = 0,
  kRelu = 1,
  kSigmoid = 2,
  /// a * factor
  kScale = 3,
  /// a[i / count] + b[i]; the next two alike
  kAdd = 4,
  kSubtract = 5,
  kMultiply = 6,
  /// a * b + c
  kMultiplyAdd = 7,
  /// The shares of each of `count` runs of numbers.
  kSoftmax = 8,
  /// The sum of `count` vectors that follow each other in a.
  kSum = 9,
  /// b[i] / a[i / count]
  kDivide = 10,
  /// The Euclidean length of each `count` numbers of a.
  kNorm = 11,
  /// The larger one of a and the factor.
  kAtLeast = 12,
  /// a without its mean, divided by the root of its variance plus the factor.
  kStandardize = 13,
  /// The same of each vector of a, times b plus c, which have a vector's numbers.
  kLayerNorm = 14,
  /// The sum of each `count` numbers of a.
  kTotal = 15,
  kTanh = 16,
  kGelu = 17,
  /// Its approximation by the hyperbolic tangent.
  kGeluTanh = 18,
  kSilu = 19,
  /// a, times the factor where it is negative.
  kLeakyRelu = 20,
  /// a + factor
  kShift = 21,
  /// The smaller one of a and the factor.
  kAtMost = 22,
  kExp = 23,
  kLog2 = 24,
  /// Without the part behind the point.
  kTruncate = 25,
  kAbsolute = 26,
  /// 1 where a < b, else 0: by a form.
  kLess = 27,
  /// The larger one of a and b: by a form.
  kLargest = 28,
  /// b where a is not 0, else the factor: by a form.
  kSelect = 29,
  /// Shares as above; zeros where all numbers of a run are minus infinity.
  kSoftmaxOrZeros = 30,
  /// a without b, divided by the root of c plus the factor; of a as many for each of b.
  kNormalize = 31,
  /// a; where it is negative, e^a - 1 times the factor.
  kElu = 32,
};
constexpr std::int64_t kNumElementwiseKind = 33;

/// By StepKind.
// clang-format off
constexpr const char* kStepNames[] = {
    "lookup",
    "linear",
    "dot",
    "elementwise",
    "contract",
    "broadcast",
    "sequence",
    "length",
    "differences",
    "take",
    "each_id",
    "to_ids",
    "from_ids",
    "read_ids",
    "sum_ids",
    "first",
    "first_pairs",
};
// clang-format on

/// What a step needs to know of an ElementwiseKind.
struct KindOfNumbers {
  const char* name;
  Operands operands;
  /// Whether a step takes the factor, and not the count.
  bool takes_factor;
};
constexpr KindOfNumbers kKindsOfNumbers[] = {
    {"copy", Operands::kOne, false},
    {"relu", Operands::kOne, false},
    {"sigmoid", Operands::kOne, false},
    {"scale", Operands::kOne, true},
    {"add", Operands::kRepeated, false},
    {"subtract", Operands::kRepeated, false},
    {"multiply", Operands::kRepeated, false},
    {"multiply_add", Operands::kThree, false},
    {"softmax", Operands::kShares, false},
    {"sum", Operands::kVectors, false},
    {"divide", Operands::kRepeated, false},
    {"norm", Operands::kRuns, false},
    {"at_least", Operands::kOne, true},
    {"standardize", Operands::kRow, true},
    {"layer_norm", Operands::kLayers, true},
    {"total", Operands::kRuns, false},
    {"tanh", Operands::kOne, false},
    {"gelu", Operands::kOne, false},
    {"gelu_tanh", Operands::kOne, false},
    {"silu", Operands::kOne, false},
    {"leaky_relu", Operands::kOne, true},
    {"shift", Operands::kOne, true},
    {"at_most", Operands::kOne, true},
    {"exp", Operands::kOne, false},
    {"log2", Operands::kOne, false},
    {"truncate", Operands::kOne, false},
    {"absolute", Operands::kOne, false},
    {"less", Operands::kForm, false},
    {"largest", Operands::kForm, false},
    {"select", Operands::kForm, false},
    {"softmax_or_zeros", Operands::kShares, false},
    {"normalize", Operands::kGroups, true},
    {"elu", Operands::kOne, true},
};

constexpr const char* NameOf(StepKind kind) { return kStepNames[static_cast<std::int64_t>(kind)]; }
constexpr const KindOfNumbers& Of(ElementwiseKind kind) {
  return kKindsOfNumbers[static_cast<std::int64_t>(kind)];
}

}  // namespace recsys::ops

#endif  // RECSYS_OPS_KINDS_H_
