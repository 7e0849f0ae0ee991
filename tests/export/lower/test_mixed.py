"""Layers and interactions over contexts and rows: which steps run once for each context.

Shape letters: B rows, D embedding dim, L places, N outputs.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from export.lower.operators.mixed import FEWEST_COLUMNS, FEWEST_PRODUCTS
from export.lower.plan import Layer, Plan
from export.lower.scheduling import Lowered
from tests.export.lower.test_contexts import kinds_by_plan
from tests.export.lower.test_lowering import kinds_of, lowered
from tests.support.models.mixed import (
    CONTEXT,
    DIM,
    JOINS,
    NUM_OUTPUTS,
    Attention,
    IdsAttention,
    Interaction,
    Mixed,
    side_by_side,
)


def layers_by_plan(program: Lowered) -> list[list[tuple[str, bool, int]]]:
    """Return the layers of each plan: the weight, whether with a bias, and how many columns are named."""
    return [
        [
            (one.weight, one.bias is not None, len(one.columns))
            for one in plan.constants
            if isinstance(one, Layer)
        ]
        for plan in program.steps
        if isinstance(plan, Plan)
    ]


@pytest.mark.parametrize("name", JOINS)
def test_a_layer_is_split(name: str) -> None:
    program = lowered(Mixed(JOINS[name]), is_ranking=True, context=CONTEXT)
    assert kinds_of(program)[-1] == "plan"
    of_contexts, of_rows = layers_by_plan(program)
    assert [(weight, has_bias) for weight, has_bias, _ in of_contexts] == [("model.layer.weight", False)]
    assert [(weight, has_bias) for weight, has_bias, _ in of_rows] == [
        ("model.layer.weight", True),
        ("model.over.weight", True),
    ]
    assert of_contexts[0][2] > 0


def test_rows_read_lookups_as_they_are() -> None:
    program = lowered(Mixed(side_by_side), is_ranking=True, context=CONTEXT)
    of_contexts, of_rows = kinds_by_plan(program)
    assert of_contexts == ["lookup", "linear"]
    assert of_rows == ["lookup", "linear", "elementwise", "elementwise", "linear"]


def test_a_form_for_rows_is_not_split() -> None:
    program = lowered(Mixed(side_by_side))
    assert layers_by_plan(program) == [[("model.layer.weight", True, 0), ("model.over.weight", True, 0)]]


@pytest.mark.parametrize(("num_columns", "num_outputs"), [(16, 2 * NUM_OUTPUTS), (32, 16), (4, 4096)])
def test_few_products_are_not_worth_it(num_columns: int, num_outputs: int) -> None:
    def join(model: Mixed, found: dict[str, Tensor]) -> Tensor:
        return model.other(torch.cat([found["user_0"][:, :num_columns], found["item_0"]], dim=1))[:, :DIM]

    model = Mixed(join, dim=32, num_inputs=DIM)
    model.other = nn.Linear(num_columns + 32, num_outputs)
    of_contexts, _ = layers_by_plan(lowered(model, is_ranking=True, context=CONTEXT))
    assert bool(of_contexts) == (
        num_columns >= FEWEST_COLUMNS and num_columns * num_outputs >= FEWEST_PRODUCTS
    )


def test_several_layers_share_the_parts() -> None:
    def join(model: Mixed, found: dict[str, Tensor]) -> Tensor:
        whole = side_by_side(model, found)
        return torch.cat([model.other(whole), model.third(whole)], dim=1)

    model = Mixed(join, num_inputs=8 * DIM)
    model.other, model.third = nn.Linear(4 * DIM, 4 * DIM), nn.Linear(4 * DIM, 4 * DIM)
    of_contexts, of_rows = kinds_by_plan(lowered(model, is_ranking=True, context=CONTEXT))
    assert of_contexts == ["lookup", "linear", "linear"]
    # Each adds what is of contexts to its own output, side by side.
    assert of_rows == ["lookup", *["linear", "elementwise"] * 2, "linear", "linear"]


@pytest.mark.parametrize("with_products", [True, False])
def test_a_layer_over_places_is_split(with_products: bool) -> None:
    model = Attention(with_products=with_products)
    program = lowered(model, is_ranking=True, context=("history",))
    of_contexts, of_rows = layers_by_plan(program)
    assert of_contexts == [("model.layer.weight", False, 2)]
    assert of_rows[: 1 + with_products] == [
        *([("model.layer.weight", False, 1)] if with_products else []),
        ("model.layer.weight", True, 2),
    ]


def test_products_of_contexts_are_computed_once() -> None:
    program = lowered(Interaction(), is_ranking=True, context=Interaction.context)
    of_contexts, of_rows = kinds_by_plan(program)
    assert sorted(of_contexts) == ["dot", "elementwise", "linear", "lookup"]
    assert sorted(of_rows) == [
        "contract", "dot", "elementwise", "elementwise", "linear", "linear", "lookup",
    ]  # fmt: skip


def test_a_layer_over_ids_takes_what_they_share_once() -> None:
    program = lowered(IdsAttention(), is_ranking=True, context=("history",))
    of_rows = kinds_by_plan(program)[-1]
    # The item's part of the layer is computed before the steps for each ID.
    assert (
        of_rows.index("linear") < of_rows.index("each_id") < of_rows.index("linear", of_rows.index("each_id"))
    )
    first = "model.attention.score.model.0._mlp.0._linear.weight"
    (layers,) = [layers for layers in layers_by_plan(program) if layers]
    assert sorted(has_bias for weight, has_bias, _ in layers if weight == first) == [False, True]
