"""What becomes of the functions of torch: each module registers some, by ``export.lower.values.operator``."""

from export.lower.operators import (
    arithmetic,
    attention,
    comparisons,
    extremes,
    layers,
    reductions,
    sequences,
    views,
)

__all__ = ["arithmetic", "attention", "comparisons", "extremes", "layers", "reductions", "sequences", "views"]
