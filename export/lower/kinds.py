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
    """A kind by its code, and what it says."""

    function: Function | None

    def __new__(cls, code: int, text: str = "", function: Function | None = None) -> Self:
        """Return a kind."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.__doc__ = text
        made.function = function
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


class StepKind(Code):
    """What a step does."""

    LOOKUP = 0, "Pooled rows of tables."
    LINEAR = 1, "A linear layer over each of the vectors of a row, and its activation."
    DOT = 2, "The products of all pairs of vectors."
    ELEMENTWISE = 3, "Numbers one by one."
    CONTRACT = 4, "Sums of products by a form."
    BROADCAST = 5, "Two operands number by number by a form."
    SEQUENCE = (
        6,
        "The rows of a bag's first IDs, or of its last ones from the last on, and zeros behind them.",
    )
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


class ElementwiseKind(Code):
    """What becomes of the numbers of a row."""

    COPY = 0
    RELU = 1, "", Function(("relu",))
    SIGMOID = 2, "", Function(("sigmoid",))
    SCALE = 3, "a * factor"
    ADD = 4, "a[i / count] + b[i]; the next two alike"
    SUBTRACT = 5
    MULTIPLY = 6
    MULTIPLY_ADD = 7, "a * b + c"
    SOFTMAX = 8, "The shares of each of `count` runs of numbers."
    SUM = 9, "The sum of `count` vectors that follow each other in a."
    DIVIDE = 10, "b[i] / a[i / count]"
    NORM = 11, "The Euclidean length of each `count` numbers of a."
    AT_LEAST = 12, "The larger one of a and the factor."
    STANDARDIZE = 13, "a without its mean, divided by the root of its variance plus the factor."
    LAYER_NORM = 14, "The same of each vector of a, times b plus c, which have a vector's numbers."
    TOTAL = 15, "The sum of each `count` numbers of a."
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
    EXP = 23
    LOG2 = 24
    TRUNCATE = 25, "Without the part behind the point."
    ABSOLUTE = 26
    LESS = 27, "1 where a < b, else 0: by a form."
    LARGEST = 28, "The larger one of a and b: by a form."
    SELECT = 29, "b where a is not 0, else the factor: by a form."
    SOFTMAX_OR_ZEROS = 30, "Shares as above; zeros where all numbers of a run are minus infinity."
    NORMALIZE = 31, "a without b, divided by the root of c plus the factor; of a as many for each of b."
    ELU = 32, "a; where it is negative, e^a - 1 times the factor.", Function(("elu",), "alpha", 1.0)


#: Kinds of numbers one by one that take the factor, and not the count.
WITH_FACTOR = (
    ElementwiseKind.SCALE,
    ElementwiseKind.AT_LEAST,
    ElementwiseKind.STANDARDIZE,
    ElementwiseKind.LAYER_NORM,
    ElementwiseKind.SHIFT,
    ElementwiseKind.AT_MOST,
    ElementwiseKind.NORMALIZE,
    *(kind for kind in ElementwiseKind if kind.function and kind.function.argument),
)

#: By enumeration, the type that holds it in C++.
_TYPES = {
    BufferKind: "std::int64_t", StepKind: "std::int64_t", Activation: "std::int32_t", ElementwiseKind: "std::int32_t",
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
        "/// Whether a step takes the factor, and not the count.",
        "constexpr bool TakesFactor(ElementwiseKind kind) {",
        "  switch (kind) {",
        *(f"    case ElementwiseKind::{kind.name_in_cpp}:" for kind in WITH_FACTOR),
        "      return true;",
        "    default:",
        "      return false;",
        "  }",
        "}",
        "",
        *_names(StepKind, "a step's kind"),
        *_names(ElementwiseKind, "what becomes of the numbers of a row"),
    ]
    return "\n".join([*lines, "}  // namespace recsys::ops", "", "#endif  // RECSYS_OPS_KINDS_H_", ""])


def _names(kind: type[Code], text: str) -> list[str]:
    """Return a function that returns the names of the kinds."""
    return [
        f"/// Returns the name of {text}.",
        f"constexpr const char* NameOf({kind.__name__} kind) {{", "  switch (kind) {",
        *(
            line
            for member in kind
            for line in (
                f"    case {kind.__name__}::{member.name_in_cpp}:",
                f'      return "{member.name.lower()}";',
            )
        ),
        "  }", '  return "";', "}", "",
    ]  # fmt: skip


if __name__ == "__main__":
    print(header(), end="")
