"""All of a block's examples, for tests that compare them."""

from __future__ import annotations

import numpy as np

from recsys.data.examples import Block, Examples


def all_of(block: Block) -> Examples:
    """Return all examples of a block, in order."""
    return block.take(np.arange(len(block)))
