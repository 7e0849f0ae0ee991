"""What becomes of the functions of torch: each module registers some, by ``export.lower.values.operator``."""

from export.lower.operators import (
    arithmetic,
    attention,
    comparisons,
    layers,
    reductions,
    sequences,
    views,
)

__all__ = ["arithmetic", "attention", "comparisons", "layers", "reductions", "sequences", "views"]
