"""Which models are lowered to programs, to which steps, and why others are not.

Shape letters: B batch, D embedding dim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.lower.kinds import StepKind, header
from export.lower.lowering import lower
from export.lower.plan import Layer, Plan
from export.lower.scheduling import Gather, Lowered, PlacedRegion
from export.prepare import prepare
from export.verify.float_model import float_outputs, with_outputs
from export.verify.reference import float_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.inputs.schema import DenseColumn
from recsys.models.dense import DenseTransforms
from tests.models.archetypes import ARCHETYPES
from tests.support.helpers import bag


def lowered(model: nn.Module, *, is_ranking: bool = False, **options: Any) -> Lowered:
    torch.manual_seed(0)
    prepared = prepare(model.eval(), ExportConfig(**options), lambda *_: None)
    return lower(
        with_outputs(prepared, float_outputs(prepared, float_model(prepared))), is_ranking=is_ranking
    )


def steps_of(program: Lowered) -> dict[str, int]:
    """Return how many steps of each kind a program has."""
    found: Counter[str] = Counter()
    for plan in program.steps:
        if isinstance(plan, Plan):
            version, num_buffers, num_lookups, num_steps, *_ = plan.numbers.tolist()
            header = 6 if version >= 4 else 4
            begin = header + 3 * num_buffers + 7 * num_lookups
            steps = plan.numbers[begin : begin + 15 * num_steps].view(num_steps, 15)
            found.update(StepKind(kind).name.lower() for kind in steps[:, 0].tolist())
    return dict(found)


def kinds_of(program: Lowered) -> list[str]:
    """Return what the program consists of, in order."""
    names = {Plan: "plan", Gather: "gather", PlacedRegion: "region"}
    return [names[type(step)] for step in program.steps]


LOWERED = {
    "dlrm": {"lookup": 1, "linear": 4, "dot": 1, "elementwise": 1},
    "dlrm_dcnv2": {"lookup": 1, "linear": 13, "elementwise": 3},
    "deepfm": {"lookup": 1, "linear": 4, "elementwise": 10},
    "wide_and_deep": {"lookup": 2, "linear": 4, "elementwise": 7},
    "masknet": {"lookup": 1, "linear": 8, "elementwise": 10},
    "finalmlp": {"lookup": 1, "linear": 12, "elementwise": 15},
    "mmoe": {"lookup": 1, "linear": 9, "elementwise": 10},
    "ple": {"lookup": 1, "linear": 21, "elementwise": 29},
}
#: Those that have steps by forms, of which graphs without a program know nothing.
FORMED: dict[str, dict[str, int]] = {
    "wukong": {"lookup": 1, "linear": 7, "contract": 8, "elementwise": 8},
    "xdeepfm": {"lookup": 1, "linear": 4, "contract": 2, "broadcast": 4, "elementwise": 7},
    "din": {
        "lookup": 1,
        "sequence": 2,
        "length": 1,
        "each_id": 1,
        "to_ids": 2,
        "from_ids": 1,
        "linear": 4,
        "contract": 1,
        "broadcast": 1,
        "elementwise": 3,
        "first": 1,
    },
    "bst": {
        "lookup": 1,
        "sequence": 2,
        "length": 1,
        "linear": 6,
        "contract": 2,
        "broadcast": 6,
        "elementwise": 14,
    },
    "sasrec": {
        "sequence": 2,
        "length": 1,
        "linear": 8,
        "contract": 4,
        "broadcast": 8,
        "elementwise": 24,
        "take": 1,
        "first": 31,
        "first_pairs": 4,
    },
    "bert4rec": {"sequence": 1, "length": 1, "linear": 5, "contract": 2, "broadcast": 4, "elementwise": 9},
    "hstu": {
        "sequence": 2,
        "length": 1,
        "differences": 1,
        "linear": 5,
        "contract": 4,
        "broadcast": 13,
        "elementwise": 22,
        "take": 4,
        "first": 29,
        "first_pairs": 4,
    },
}
#: Those that torch computes a part of.
OTHERS = {"two_tower": ["plan", "region"]}


def test_the_archetypes_are_known() -> None:
    assert {*LOWERED, *FORMED, *OTHERS} == set(ARCHETYPES)


@pytest.mark.parametrize("name", [*LOWERED, *FORMED])
def test_archetypes_that_are_lowered(name: str) -> None:
    case = ARCHETYPES[name]
    program = lowered(case.served(case.make().eval()), **case.options)
    assert len(program.steps) == 1
    assert steps_of(program) == {**LOWERED, **FORMED}[name]


@pytest.mark.parametrize("name", OTHERS)
def test_archetypes_of_which_torch_computes_a_part(name: str) -> None:
    case = ARCHETYPES[name]
    assert kinds_of(lowered(case.served(case.make().eval()), **case.options)) == OTHERS[name]


class Scored(nn.Module):
    """A score of two features, by layers that each case names."""

    def __init__(self, score: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 8, ["f", "g"])])
        self.over = nn.Linear(16, 1)
        self._score = score
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part, persistent=name == "stored")
            else:
                setattr(self, name, part)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        score: Tensor = self._score(self, self.tables(features).values())
        return score


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(*shape))


STEPS = {
    "a linear layer": (lambda m, x: m.over(x), {}, {"lookup": 1, "linear": 1}),
    "with its activation": (lambda m, x: torch.sigmoid(m.over(x)), {}, {"lookup": 1, "linear": 1}),
    "whose output is read twice": (
        lambda m, x: torch.sigmoid(m.over(x)) + m.over(x).relu(),
        {},
        {"lookup": 1, "linear": 1, "elementwise": 3},
    ),
    "a vector for each row": (lambda m, x: m.over(x * m.w + m.b), {"w": weight(16), "b": weight(16)}, {
        "lookup": 1, "linear": 1, "elementwise": 1}),
    "a number": (lambda m, x: m.over(x * 2 / 3), {}, {"lookup": 1, "linear": 1, "elementwise": 2}),
    "dropout": (lambda m, x: m.over(m.drop(x)), {"drop": nn.Dropout(0.5)}, {"lookup": 1, "linear": 1}),
    "columns": (lambda m, x: m.over(torch.cat([x[:, 8:], x[:, :8]], dim=1)), {}, {
        "lookup": 1, "linear": 1, "elementwise": 2}),
    "columns by number": (lambda m, x: m.over(x.index_select(1, m.order)), {
        "order": torch.arange(15, -1, -1)}, {"lookup": 1, "linear": 1, "elementwise": 16}),
    "vectors by number": (
        lambda m, x: m.over(x + m.rows((x[:, :1] * 9).long().clamp(0, 8)).flatten(1)), {"rows": nn.Embedding(9, 16)},
        {"lookup": 1, "linear": 1, "elementwise": 5, "take": 1}),
    "vectors and their sums": (
        lambda m, x: m.wide(torch.cat([x[:, :8], x[:, 8:], x[:, :8] - x[:, 8:]], dim=1)), {"wide": nn.Linear(24, 1)},
        {"lookup": 1, "linear": 1, "elementwise": 2}),
    "sums of sums": (lambda m, x: m.wide(_with_sums(x.sigmoid(), x.tanh())), {"wide": nn.Linear(64, 1)}, {
        "lookup": 1, "linear": 1, "elementwise": 2}),
    "a sum of others": (lambda m, x: m.wide(torch.cat([x, x + x.tanh()], dim=1)), {"wide": nn.Linear(32, 1)}, {
        "lookup": 1, "linear": 1, "elementwise": 2}),
    "batch norm": (lambda m, x: m.over(m.norm(x)), {"norm": nn.BatchNorm1d(16)}, {
        "lookup": 1, "linear": 1, "elementwise": 2}),
    "batch norm without weights": (lambda m, x: m.over(m.norm(x)), {"norm": nn.BatchNorm1d(16, affine=False)}, {
        "lookup": 1, "linear": 1, "elementwise": 1}),
    "batch norm of channels": (
        lambda m, x: m.over(m.norm(x.view(-1, 4, 4)).flatten(1)), {"norm": nn.BatchNorm1d(4)}, {
        "lookup": 1, "linear": 1, "elementwise": 3}),
    "numbers several times": (lambda m, x: m.over(x[:, :4].repeat_interleave(4, dim=1)), {}, {
        "lookup": 1, "linear": 1, "broadcast": 1}),
}  # fmt: skip


class Transformed(nn.Module):
    """A score of numbers that may be missing, and of features."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 8, ["f", "g"])])
        self.transforms = DenseTransforms(
            (
                DenseColumn(name="filled", missing=7.0),
                DenseColumn(name="clipped", missing=1.0, clip=(-1.0, 3.0)),
                DenseColumn(name="bucketized", missing=-5.0, buckets=(0.0, 2.5)),
                DenseColumn(name="scaled", log1p=True, mean=0.5, std=2.0),
            )
        )
        self.over = nn.Linear(16 + self.transforms.out_features, 1)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        score: Tensor = self.over(torch.cat([self.transforms(dense), self.tables(features).values()], dim=1))
        return score


def test_transforms_of_dense_features_have_steps() -> None:
    assert steps_of(lowered(Transformed(), dense_widths={"dense": 4}))["linear"] == 1


def test_equality_is_computed_for_each_row() -> None:
    # Python itself compares values as objects, and would say the same of every row.
    program = steps_of(lowered(Scored(lambda m, x: m.over(x * (x == 0) + (x != 1)))))
    assert program["broadcast"] > 2


@pytest.mark.parametrize("name", STEPS)
def test_what_steps_compute(name: str) -> None:
    score, parts, expected = STEPS[name]
    assert steps_of(lowered(Scored(score, **parts))) == expected


def _with_sums(a: Tensor, b: Tensor) -> Tensor:
    total = a + b
    return torch.cat([total - a, a, b, total], dim=1)


def test_kernels_know_the_kinds() -> None:
    # python -m export.lower.kinds > cpp_client/ops/kinds.h
    root = Path(__file__).resolve().parents[3]
    assert (root / "cpp_client/ops/kinds.h").read_text() == header()


def test_weights_are_known_by_path() -> None:
    program = lowered(Scored(lambda m, x: m.over(x)))
    (plan,) = program.steps
    assert isinstance(plan, Plan)
    assert Layer("model.over.weight", "model.over.bias") in plan.constants
    assert set(program.weights) == {"model.over.weight", "model.over.bias"}


def test_a_weight_of_several_names_has_the_first() -> None:
    model = Scored(lambda m, x: m.over(x) + m.second(x), second=nn.Linear(16, 1))
    model.second.weight = model.over.weight
    program = lowered(model)
    (plan,) = program.steps
    assert isinstance(plan, Plan)
    assert Layer("model.over.weight", "model.over.bias") in plan.constants
    assert Layer("model.over.weight", "model.second.bias") in plan.constants
    assert set(program.weights) == {"model.over.weight", "model.over.bias", "model.second.bias"}


def test_a_context_is_computed_once_and_expanded() -> None:
    case = ARCHETYPES["dlrm"]
    program = lowered(case.make().eval(), is_ranking=True, context=("dense_features", "user"))
    kinds = [type(step) for step in program.steps]
    assert kinds[0] is Plan
    assert kinds[-1] is Plan
    assert set(kinds[1:-1]) == {Gather}
