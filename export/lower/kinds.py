"""The kinds of what plans are made of, and their codes: written once, here.

``python -m export.lower.kinds > cpp_client/ops/kinds.h`` writes them for the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Self


@dataclass(frozen=True)
class Function:
    """The function of torch that a kind computes, number by number.

    Attributes:
        names: Its names.
        argument: The name of the argument that is the step's factor; None without one.
        default: What it is if it is not given.
    """

    names: tuple[str, ...]
    argument: str | None = None
    default: float | None = None


class Code(IntEnum):
    """A kind by its code, and what it says. ``of``: what only kinds of numbers have."""

    of: Function | Operands | None

    def __new__(cls, code: int, text: str = "", of: Function | Operands | None = None) -> Self:
        """Return a kind."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.__doc__ = text
        made.of = of
        return made

    @property
    def name_in_cpp(self) -> str:
        """The enumerator: ``kMultiplyAdd`` of ``MULTIPLY_ADD``."""
        return "k" + self.name.title().replace("_", "")


class BufferKind(Code):
    """Where the rows of a buffer are."""

    INPUT = 0
    CONSTANT = 1
    SCRATCH = 2
    OUTPUT = 3
    IDS = 4, "In scratch memory, a row for each ID: of the steps after EACH_ID alone."


class SequenceOrder(Code):
    """Which rows of a bag a sequence has."""

    FIRST = 0, "The first ones."
    BACKWARDS = 1, "The last ones, from the last on."
    RECENT = 2, "The last ones, in their order."


class StepKind(Code):
    """What a step does."""

    LOOKUP = 0, "Pooled rows of tables."
    LINEAR = 1, "A linear layer over each of the vectors of a row, and its activation."
    DOT = 2, "The products of all pairs of vectors."
    ELEMENTWISE = 3, "Numbers one by one."
    CONTRACT = 4, "Sums of products by a form."
    BROADCAST = 5, "Two operands number by number by a form."
    SEQUENCE = 6, "The rows of some of a bag's IDs, in the order of `extra`, and zeros behind them."
    LENGTH = 7, "The number of a bag's IDs."
    DIFFERENCES = 8, "ID i less ID j of a bag's first IDs, for each pair; those that are missing are 0."
    TAKE = 9, "Vectors of b by the numbers in a, which are bounded to those that are there."
    EACH_ID = 10, "The next `index` steps for as many IDs of a row as a says, at most `extra`; or for all."
    TO_IDS = 11, "For each ID its row's a, or the vector of its place there."
    FROM_IDS = 12, "What was computed for each ID, side by side in its row."
    READ_IDS = 13, "The row of each ID."
    SUM_IDS = 14, "Adds what was computed for each ID to its row."
    FIRST = 15, "Bounds the next step to the first places of each row: as many as a says, of `extra`."
    FIRST_PAIRS = 16, "The same for pairs of places."


class Activation(Code):
    """What follows a linear layer in its step."""

    NONE = 0
    RELU = 1
    SIGMOID = 2


class Operands(Code):
    """Which numbers a step takes to compute those of a row."""

    ONE = 0, "a, number by number."
    REPEATED = 1, "a, each number `count` times, and b, number by number."
    THREE = 2, "a, b and c, number by number."
    RUNS = 3, "Each `count` numbers of a, for one."
    VECTORS = 4, "`count` vectors of a, for one."
    SHARES = 5, "`count` runs of a, as wide."
    ROW = 6, "All numbers of a, as wide."
    LAYERS = 7, "Vectors of a; b and c have a vector's numbers."
    GROUPS = 8, "As many numbers of a for each of b and c."
    FORM = 9, "By a form alone."


class ElementwiseKind(Code):
    """What becomes of the numbers of a row."""

    @property
    def function(self) -> Function | None:
        """The function of torch that it computes, if it is one of one number."""
        return self.of if isinstance(self.of, Function) else None

    @property
    def takes(self) -> Operands:
        """Which numbers it takes."""
        return self.of if isinstance(self.of, Operands) else Operands.ONE

    @property
    def takes_factor(self) -> bool:
        """Whether a step of numbers one by one takes the factor, and not the count."""
        return self.name in _WITH_FACTOR or bool(self.function and self.function.argument)

    COPY = 0
    RELU = 1, "", Function(("relu",))
    SIGMOID = 2, "", Function(("sigmoid",))
    SCALE = 3, "a * factor"
    ADD = 4, "a[i / count] + b[i]; the next two alike", Operands.REPEATED
    SUBTRACT = 5, "", Operands.REPEATED
    MULTIPLY = 6, "", Operands.REPEATED
    MULTIPLY_ADD = 7, "a * b + c", Operands.THREE
    SOFTMAX = 8, "The shares of each of `count` runs of numbers.", Operands.SHARES
    SUM = 9, "The sum of `count` vectors that follow each other in a.", Operands.VECTORS
    DIVIDE = 10, "b[i] / a[i / count]", Operands.REPEATED
    NORM = 11, "The Euclidean length of each `count` numbers of a.", Operands.RUNS
    AT_LEAST = 12, "The larger one of a and the factor."
    STANDARDIZE = 13, "a without its mean, divided by the root of its variance plus the factor.", Operands.ROW
    LAYER_NORM = (
        14,
        "The same of each vector of a, times b plus c, which have a vector's numbers.",
        Operands.LAYERS,
    )
    TOTAL = 15, "The sum of each `count` numbers of a.", Operands.RUNS
    TANH = 16, "", Function(("tanh",))
    GELU = 17
    GELU_TANH = 18, "Its approximation by the hyperbolic tangent."
    SILU = 19, "", Function(("silu", "swish"))
    LEAKY_RELU = (
        20,
        "a, times the factor where it is negative.",
        Function(("leaky_relu",), "negative_slope", 0.01),
    )
    SHIFT = 21, "a + factor"
    AT_MOST = 22, "The smaller one of a and the factor."
    EXP = 23, "", Function(("exp",))
    LOG2 = 24, "", Function(("log2",))
    TRUNCATE = 25, "Without the part behind the point."
    ABSOLUTE = 26, "", Function(("abs", "absolute"))
    LESS = 27, "1 where a < b, else 0: by a form.", Operands.FORM
    LARGEST = 28, "The larger one of a and b: by a form.", Operands.FORM
    SELECT = 29, "b where a is not 0, else the factor: by a form.", Operands.FORM
    SOFTMAX_OR_ZEROS = (
        30,
        "Shares as above; zeros where all numbers of a run are minus infinity.",
        Operands.SHARES,
    )
    NORMALIZE = (
        31,
        "a without b, divided by the root of c plus the factor; of a as many for each of b.",
        Operands.GROUPS,
    )
    ELU = 32, "a; where it is negative, e^a - 1 times the factor.", Function(("elu",), "alpha", 1.0)


_WITH_FACTOR = ("SCALE", "AT_LEAST", "STANDARDIZE", "LAYER_NORM", "SHIFT", "AT_MOST", "NORMALIZE")
#: By enumeration, the type that holds it in C++.
_TYPES = {
    BufferKind: "std::int64_t", SequenceOrder: "std::int64_t", StepKind: "std::int64_t",
    Activation: "std::int32_t", Operands: "std::int32_t", ElementwiseKind: "std::int32_t",
}  # fmt: skip


def header() -> str:
    """Return ``cpp_client/ops/kinds.h``."""
    lines = [
        "#ifndef RECSYS_OPS_KINDS_H_", "#define RECSYS_OPS_KINDS_H_", "",
        "// Written by python -m export.lower.kinds: change the kinds there.", "",
        "#include <cstdint>", "", "namespace recsys::ops {", "",
    ]  # fmt: skip
    for kind, of_type in _TYPES.items():
        lines += [f"/// {kind.__doc__}", f"enum class {kind.__name__} : {of_type} {{"]
        for member in kind:
            lines += [f"  /// {member.__doc__}"] if member.__doc__ else []
            lines.append(f"  {member.name_in_cpp} = {member.value},")
        lines += ["};", f"constexpr std::int64_t kNum{kind.__name__} = {len(kind)};", ""]
    lines += [
        "/// By StepKind.", "// clang-format off", "constexpr const char* kStepNames[] = {",
        *(f'    "{kind.name.lower()}",' for kind in StepKind),
        "};", "// clang-format on", "",
        "/// What a step needs to know of an ElementwiseKind.",
        "struct KindOfNumbers {",
        "  const char* name;",
        "  Operands operands;",
        "  /// Whether a step takes the factor, and not the count.",
        "  bool takes_factor;",
        "};", "constexpr KindOfNumbers kKindsOfNumbers[] = {", *map(_row, ElementwiseKind), "};", "",
        "constexpr const char* NameOf(StepKind kind) { return kStepNames[static_cast<std::int64_t>(kind)]; }",
        "constexpr const KindOfNumbers& Of(ElementwiseKind kind) {",
        "  return kKindsOfNumbers[static_cast<std::int64_t>(kind)];",
        "}", "",
    ]  # fmt: skip
    return "\n".join([*lines, "}  // namespace recsys::ops", "", "#endif  // RECSYS_OPS_KINDS_H_", ""])


def _row(kind: ElementwiseKind) -> str:
    factor = str(kind.takes_factor).lower()
    return f'    {{"{kind.name.lower()}", Operands::{kind.takes.name_in_cpp}, {factor}}},'


if __name__ == "__main__":
    print(header(), end="")
