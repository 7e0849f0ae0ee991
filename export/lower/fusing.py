"""Which values share a step: a layer with its activation, a sum with a product in it, forms among each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from export.lower.formed import Broadcast, Interleave, Written
from export.lower.kinds import Activation, ElementwiseKind
from export.lower.padding.places import FirstPlaces
from export.lower.strided import restrided
from export.lower.values import Elementwise, Linear, Value

ACTIVATIONS = {activation.name.lower(): activation for activation in Activation}


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """The values of a plan that share steps.

    Attributes:
        layers: By activation, the layer that computes it.
        within: By sum, the product in it, and what is added to that.
        interleaved: By what is written among others, the form that writes it, and the strides by which it does.
        skipped: The values that have no step of their own.
    """

    layers: dict[Value, Linear] = field(default_factory=dict)
    within: dict[Value, tuple[Elementwise, Value]] = field(default_factory=dict)
    interleaved: dict[Written, tuple[Broadcast, tuple[int, ...]]] = field(default_factory=dict)
    skipped: set[Value] = field(default_factory=set)

    @property
    def by_last(self) -> dict[Value, Value]:
        """The first value of those that share a step, by the last one."""
        found: dict[Value, Value] = {total: product for total, (product, _) in self.within.items()}
        return found | self.layers


def fuse(values: Sequence[Value], outputs: Sequence[Value], first: Mapping[Value, FirstPlaces]) -> Fusion:
    """Return which values share a step.

    Args:
        values: What is computed, in order.
        outputs: Those of them that are returned.
        first: Those of which only the first places are needed.
    """
    members, users = set(values), dict[Value, list[Value]]()
    for value in values:
        for source in value.sources:
            users.setdefault(source, []).append(value)
    fusion = Fusion()
    for value in values:
        # Only what nothing else reads.
        inner = {
            one for one in value.sources if users[one] == [value] and one in members and one not in outputs
        }
        if isinstance(value, Interleave):
            _fuse_parts(value, inner, first, fusion)
        if not isinstance(value, Elementwise):
            continue
        if value.kind is ElementwiseKind.ADD:
            _fuse_product(value, inner, fusion)
        layer = value.operands[0]
        if isinstance(layer, Linear) and value.kind.name.lower() in ACTIVATIONS and layer in inner:
            fusion.layers[value] = layer
            fusion.skipped.add(layer)
    return fusion


def _fuse_parts(
    value: Interleave, inner: set[Value], first: Mapping[Value, FirstPlaces], fusion: Fusion
) -> None:
    """Let forms write what they compute among others."""
    for part in value.parts:
        of = part.operand.value
        if isinstance(of, Broadcast) and of in inner:
            strides = restrided(of, part)
            # What is between its numbers is not its own to fill.
            is_filled = of in first and first[of].fills
            if strides is not None and not is_filled:
                fusion.interleaved[part] = of, strides
                fusion.skipped.add(of)


def _fuse_product(total: Elementwise, inner: set[Value], fusion: Fusion) -> None:
    """Let a sum compute a product in it."""
    for product, other in (total.operands, reversed(total.operands)):
        if (
            isinstance(product, Elementwise)
            and product in inner
            and product.kind is ElementwiseKind.MULTIPLY
            and product.count == total.count == 1
            and product.operands[0].dims == product.operands[1].dims
            and product.dims == other.dims
        ):
            fusion.within[total] = (product, other)
            fusion.skipped.add(product)
            return
