"""Whether outputs vary over the samples: those that do not would be equal whatever the artifact computes.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from export.verify.compare import END_TO_END_TOLERANCES

# As where outputs are compared: smaller numbers are compared as if they were of this size.
_LEAST = 2.0**-10


def hardly_varying(outputs: Mapping[str, Tensor], num_rows: int) -> tuple[str, ...]:
    """Return the outputs that differ from row to row by no more than the comparison tolerates.

    Args:
        outputs: The float model's, by name.
        num_rows: B; outputs without a row for each are left out, and one row tells nothing.
    """
    if num_rows < 2:
        return ()
    return tuple(
        name
        for name, output in outputs.items()
        if output.dim() and len(output) == num_rows and output.numel() and not _varies(output)
    )


def _varies(output: Tensor) -> bool:
    rows = output.reshape(len(output), -1)
    if not output.is_floating_point():
        return bool((rows != rows[:1]).any())
    rows = rows.to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
    spread = float((rows.amax(dim=0) - rows.amin(dim=0)).max())
    return spread > END_TO_END_TOLERANCES[torch.float32] * max(float(rows.abs().max()), _LEAST)
