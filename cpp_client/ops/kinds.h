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
  /// The rows of a bag's first IDs, or of its last ones from the last on, and zeros behind them.
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

/// Whether a step takes the factor, and not the count.
constexpr bool TakesFactor(ElementwiseKind kind) {
  switch (kind) {
    case ElementwiseKind::kScale:
    case ElementwiseKind::kAtLeast:
    case ElementwiseKind::kStandardize:
    case ElementwiseKind::kLayerNorm:
    case ElementwiseKind::kShift:
    case ElementwiseKind::kAtMost:
    case ElementwiseKind::kNormalize:
    case ElementwiseKind::kLeakyRelu:
    case ElementwiseKind::kElu:
      return true;
    default:
      return false;
  }
}

/// Returns the name of a step's kind.
constexpr const char* NameOf(StepKind kind) {
  switch (kind) {
    case StepKind::kLookup:
      return "lookup";
    case StepKind::kLinear:
      return "linear";
    case StepKind::kDot:
      return "dot";
    case StepKind::kElementwise:
      return "elementwise";
    case StepKind::kContract:
      return "contract";
    case StepKind::kBroadcast:
      return "broadcast";
    case StepKind::kSequence:
      return "sequence";
    case StepKind::kLength:
      return "length";
    case StepKind::kDifferences:
      return "differences";
    case StepKind::kTake:
      return "take";
    case StepKind::kEachId:
      return "each_id";
    case StepKind::kToIds:
      return "to_ids";
    case StepKind::kFromIds:
      return "from_ids";
    case StepKind::kReadIds:
      return "read_ids";
    case StepKind::kSumIds:
      return "sum_ids";
    case StepKind::kFirst:
      return "first";
    case StepKind::kFirstPairs:
      return "first_pairs";
  }
  return "";
}

/// Returns the name of what becomes of the numbers of a row.
constexpr const char* NameOf(ElementwiseKind kind) {
  switch (kind) {
    case ElementwiseKind::kCopy:
      return "copy";
    case ElementwiseKind::kRelu:
      return "relu";
    case ElementwiseKind::kSigmoid:
      return "sigmoid";
    case ElementwiseKind::kScale:
      return "scale";
    case ElementwiseKind::kAdd:
      return "add";
    case ElementwiseKind::kSubtract:
      return "subtract";
    case ElementwiseKind::kMultiply:
      return "multiply";
    case ElementwiseKind::kMultiplyAdd:
      return "multiply_add";
    case ElementwiseKind::kSoftmax:
      return "softmax";
    case ElementwiseKind::kSum:
      return "sum";
    case ElementwiseKind::kDivide:
      return "divide";
    case ElementwiseKind::kNorm:
      return "norm";
    case ElementwiseKind::kAtLeast:
      return "at_least";
    case ElementwiseKind::kStandardize:
      return "standardize";
    case ElementwiseKind::kLayerNorm:
      return "layer_norm";
    case ElementwiseKind::kTotal:
      return "total";
    case ElementwiseKind::kTanh:
      return "tanh";
    case ElementwiseKind::kGelu:
      return "gelu";
    case ElementwiseKind::kGeluTanh:
      return "gelu_tanh";
    case ElementwiseKind::kSilu:
      return "silu";
    case ElementwiseKind::kLeakyRelu:
      return "leaky_relu";
    case ElementwiseKind::kShift:
      return "shift";
    case ElementwiseKind::kAtMost:
      return "at_most";
    case ElementwiseKind::kExp:
      return "exp";
    case ElementwiseKind::kLog2:
      return "log2";
    case ElementwiseKind::kTruncate:
      return "truncate";
    case ElementwiseKind::kAbsolute:
      return "absolute";
    case ElementwiseKind::kLess:
      return "less";
    case ElementwiseKind::kLargest:
      return "largest";
    case ElementwiseKind::kSelect:
      return "select";
    case ElementwiseKind::kSoftmaxOrZeros:
      return "softmax_or_zeros";
    case ElementwiseKind::kNormalize:
      return "normalize";
    case ElementwiseKind::kElu:
      return "elu";
  }
  return "";
}

}  // namespace recsys::ops

#endif  // RECSYS_OPS_KINDS_H_
