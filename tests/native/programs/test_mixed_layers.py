"""Layers and interactions over contexts and rows compute what torch does for whole rows.

Shape letters: B rows, Q contexts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from recsys.kernels.operators import LINEAR_DTYPES
from tests.native.program_models import assert_near, loaded, ranking_inputs
from tests.support.kernels import needs_kernels
from tests.support.models.mixed import CONTEXT, JOINS, Attention, IdsAttention, Interaction, Mixed

pytestmark = needs_kernels

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    **{name: (lambda join=join: Mixed(join), CONTEXT) for name, join in JOINS.items()},  # type: ignore[misc]
    "places": (Attention, ("history",)),
    "IDs": (IdsAttention, ("history",)),
    "places without products": (lambda: Attention(with_products=False), ("history",)),
    "products": (Interaction, Interaction.context),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("isa")
def test_numbers_are_those_of_whole_rows(tmp_path: Path, name: str) -> None:
    make, context = MODELS[name]
    plain, own = loaded(tmp_path / "a", make(), context=context)
    assert own.runs_program
    for rows in ((), (0,), (1,), (3, 0, 2), (50, 7)):
        inputs = ranking_inputs(own, rows)
        found, expected = own.forward_ranking(*inputs), plain.forward_ranking(*inputs)
        assert_near(found["default"], expected["default"], "float32")


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
@pytest.mark.parametrize("name", ["joined", "places", "IDs", "products"])
def test_the_bits_of_a_row_do_not_depend_on_the_batch(tmp_path: Path, name: str, dtype: str) -> None:
    make, context = MODELS[name]
    plain, own = loaded(tmp_path / "a", make(), context=context, linear_dtype=dtype)
    inputs = ranking_inputs(own, (53, 2, 1))
    scores = own.forward_ranking(*inputs)["default"]
    assert_near(scores, plain.forward_ranking(*inputs)["default"], dtype)
    *of_contexts, lengths, values, row_context = inputs
    bags = values.split(lengths.tolist())
    num_rows = len(row_context)
    for row in (0, 47, 52, 54, 55):
        alone = [lengths.view(-1, num_rows)[:, row].contiguous(), torch.cat(bags[row::num_rows])]
        found = own.forward_ranking(*of_contexts, *alone, row_context[row : row + 1])["default"]
        assert torch.equal(found, scores[row : row + 1])
