"""Converted models beside the models that they are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from export.config import PlainOptions
from export.plain.convert import converted
from export.plain.given import given_inputs
from recsys.jagged.keyed_jagged import KeyedJaggedTensor


def check_converted(
    model: nn.Module, example: tuple[Tensor, ...], batches: Sequence[tuple[Tensor, ...]] = ()
) -> None:
    """Check that a converted model predicts what the model does.

    Args:
        model: The model.
        example: What it is converted with; some of its rows are compared.
        batches: What else is compared.
    """
    made = converted(model, PlainOptions(inputs=example))
    for rows in [tuple(one[:num_rows] for one in example) for num_rows in (1, 5)] + [*batches]:
        bags = made.inputs.request(given_inputs(model, rows))["sparse"]
        features = KeyedJaggedTensor(
            list(bags),
            torch.tensor([one for of in bags.values() for bag in of for one in bag], dtype=torch.int64),
            lengths=torch.tensor([len(bag) for of in bags.values() for bag in of]),
        )
        with torch.no_grad():
            torch.testing.assert_close(made.model.run({}, features), model(*(one.clone() for one in rows)))
