"""What the inputs of plain models become: names, columns, padding, and inputs within objects.

Shape letters: B batch, L IDs of a history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig, PlainOptions
from export.plain.check import Converted
from export.plain.convert import Whole, convert_plain, converted
from export.plain.given import given_inputs, read_inputs
from export.prepare import prepare
from recsys import EmbeddingBagCollection
from recsys.errors import ExportError
from tests.export.plain.models import DIM, NUM_ITEMS, history, ids
from tests.support.helpers import bag


class Items(nn.Module):
    """Sums of rows of a history."""

    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=padding_idx)

    def forward(self, history: Tensor) -> Tensor:
        return self.items(history).sum(dim=(1, 2))


def features_of(model: nn.Module, inputs: Any, **options: Any) -> Mapping[str, tuple[int, str, int]]:
    found = converted(model, PlainOptions(inputs=inputs, **options))
    return {one.name: (one.num_ids, one.side, one.padding) for one in found.inputs.features}


def padded_with(padding: int, side: str) -> Tensor:
    items = history(side)
    return torch.where(items == 0, padding, items.masked_fill(items == padding, padding + 1))


@pytest.mark.parametrize(
    ("padding_idx", "example", "expected"),
    [
        (0, history("left"), ("left", 0)),
        (0, history("right"), ("right", 0)),
        (None, history("right"), ("right", 0)),
        (7, padded_with(7, "left"), ("left", 7)),
        (0, torch.cat([history("left"), history("right")]), ("none", 0)),
        (0, torch.randint(1, NUM_ITEMS, (8, 6)), ("none", 0)),
    ],
    ids=["left", "right", "no padding_idx", "another number", "both sides", "full rows"],
)
def test_padding_is_what_the_example_shows(
    padding_idx: int | None, example: Tensor, expected: tuple[str, int]
) -> None:
    assert features_of(Items(padding_idx), example) == {"history": (6, *expected)}


def test_padding_whose_row_is_not_zero_is_looked_up() -> None:
    found = converted(Items().eval(), PlainOptions(inputs=history("right")))
    assert [one.side for one in found.inputs.features] == ["right"]
    assert [plan.kind for plan in found.plans] == ["computed"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"history": "top"}, r"padding\['history'\]: got 'top', expected left, right or none, or left:ID"),
        ({"history": "left:x"}, r"got 'left:x'"),
        ({"items": "left"}, r"padding: got 'items', expected one of \['history'\]"),
    ],
)
def test_wrong_padding_is_refused(said: Mapping[str, str], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        features_of(Items(0), history("left"), padding=said)


@dataclass
class User:
    """A part of a batch."""

    number: Tensor
    history: Tensor


class Nested(nn.Module):
    """Takes tensors within objects, and what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.users = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0), nn.Embedding(50, DIM)

    def forward(self, user: User, pair: list[dict[str, Tensor]], scale: float, kind: str = "sum") -> Tensor:
        rows = self.users(user.number) + self.items(user.history).sum(dim=1)
        first, second = (self.items(one["item"].squeeze(-1)) for one in pair)
        return scale * getattr(rows * (first - second), kind)(dim=1)


def _nested() -> tuple[Any, ...]:
    user = User(number=ids(50).squeeze(1), history=history("left"))
    return user, [{"item": ids(NUM_ITEMS)}, {"item": ids(NUM_ITEMS)}], 2.0


def test_tensors_within_objects_are_inputs_by_their_names() -> None:
    assert features_of(Nested().eval(), _nested()) == {
        "number": (1, "none", 0),
        "history": (6, "left", 0),
        "0_item": (1, "none", 0),
        "1_item": (1, "none", 0),
    }


class Named(Items):
    """Takes any names."""

    def forward(self, history: Tensor, **others: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(history) + others["price"]


@dataclass(slots=True, frozen=True)
class Slots:
    """A batch."""

    history: Tensor


class OfSlots(Items):
    """Takes them."""

    def forward(self, batch: Slots) -> Tensor:  # type: ignore[override]
        return super().forward(batch.history)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Named(0), {"history": history("left"), "price": torch.rand(16)}),
        (OfSlots(0), Slots(history("left"))),
        (nn.DataParallel(Items(0)), {"history": history("left")}),
        (nn.DataParallel(Items(0)), history("left")),
    ],
    ids=["any names", "slots", "names of what is wrapped", "a place of what is wrapped"],
)
def test_inputs_have_the_names_that_forward_gives_them(model: nn.Module, inputs: Any) -> None:
    assert features_of(model.eval(), inputs) == {"history": (6, "left", 0)}


def test_names_that_would_be_equal_get_what_is_before_them() -> None:
    class Two(nn.Module):
        def forward(self, a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
            return a["x"] + b["x"]

    given = given_inputs(Two(), ({"x": torch.zeros(3)}, {"x": torch.zeros(3)}))
    assert [leaf.name for leaf in given.leaves] == ["a_x", "b_x"]


def test_a_part_gets_what_the_whole_calls_it_with() -> None:
    class Whole_(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = Items(0)

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return self.tower(x[:, 1:]) @ target

    model = Whole_()
    whole = Whole(model=model, path="tower")
    found: Converted = converted(
        model.tower, PlainOptions(inputs=(history("right"), torch.rand(16, 3))), whole
    )
    assert [(one.name, one.num_ids) for one in found.inputs.features] == [("history", 5)]


def test_models_with_collections_stay_as_they_are() -> None:
    model = EmbeddingBagCollection([bag("t", 20, DIM, ["f"])])
    model.num_ids = 5  # type: ignore[assignment]
    assert convert_plain(model, PlainOptions()) is model
    prepared = prepare(model, ExportConfig(), lambda *_: None)
    assert [(one.num_ids, one.fixed) for one in prepared.signature.sparse] == [(None, False)]


def test_ids_that_follow_from_rows_are_no_input() -> None:
    """Those of the best of a history, by the rows that they are looked up in."""

    class Best(Items):
        def forward(self, history: Tensor) -> Tensor:
            best = self.items(history).sum(dim=2).topk(2, dim=1).indices
            return self.items(history.gather(1, best)).sum(dim=(1, 2))

    made = converted(Best().eval(), PlainOptions(inputs=history("right"))).model
    prepared = prepare(made, ExportConfig(), lambda *_: None)
    assert [one.name for one in prepared.signature.sparse] == ["history"]


def test_inputs_may_be_a_file(tmp_path: Path) -> None:
    torch.save({"history": history("left")}, tmp_path / "inputs.pt")
    assert list(features_of(Items(0), read_inputs(tmp_path / "inputs.pt"))) == ["history"]
    (tmp_path / "text.pt").write_text("no tensors")
    with pytest.raises(ExportError, match=r"inputs: 'text.pt' cannot be read"):
        read_inputs(tmp_path / "text.pt")
