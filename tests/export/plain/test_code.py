"""What the code of plain models may do: change tensors in place, tie weights, decide by sizes; and what it may not.

Shape letters: B batch, L IDs of a history, D embedding dim.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from export.config import PlainOptions
from export.plain.convert import converted
from recsys.errors import ExportError
from recsys.scripting import torchscript
from tests.export.plain.checked import check_converted
from tests.export.plain.models import DIM, FIELDS, LENGTH, NUM_ITEMS, history, ids

_NUM_USERS = FIELDS[0]


class Model(nn.Module):
    """A score ``[B]`` of a history and a user, by a function of the rows of both.

    Args:
        score: Takes the model, IDs ``[B, L]`` and users ``[B]``.
    """

    def __init__(self, score: Callable[..., Tensor]) -> None:
        super().__init__()
        self.items = nn.Embedding(NUM_ITEMS, DIM, padding_idx=0)
        self.users = nn.Embedding(_NUM_USERS, DIM)
        self.tied = nn.Linear(DIM, NUM_ITEMS)
        self.tied.weight = self.items.weight
        self.relu = nn.ReLU(inplace=True)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.scale = torch.full((DIM,), 2.0)
        self.score = score

    def forward(self, history: Tensor, user: Tensor) -> Tensor:
        return self.score(self, history, user)

    def vectors(self, history: Tensor, user: Tensor) -> Tensor:
        """Return a vector of each row, ``[B, D]``."""
        return self.items(history).sum(dim=1) * self.users(user)


def _clamps_its_input(model: Model, history: Tensor, user: Tensor) -> Tensor:
    history.clamp_(max=30)
    return model.vectors(history, user).sum(dim=1)


def _assigns_to_its_input(model: Model, history: Tensor, user: Tensor) -> Tensor:
    history[:, 0] = 3
    history[history > 40] = 0
    return model.vectors(history, user).sum(dim=1)


def _brings_ids_into_range(model: Model, history: Tensor, user: Tensor) -> Tensor:
    user.sub_(5).clamp_(min=0)
    return model.vectors(history, user).sum(dim=1)


def _splits_heads_of_its_rows(model: Model, history: Tensor, user: Tensor) -> Tensor:
    rows = model.items(history)
    rows[:, 0] = 0.0
    heads = rows.view(-1, LENGTH, 2, DIM // 2).transpose(1, 2)
    return heads.transpose(1, 2).transpose(2, 3).reshape(-1, LENGTH * DIM).sum(dim=1) + user


def _adds_to_its_input(model: Model, history: Tensor, user: Tensor) -> Tensor:
    user += 1
    user %= _NUM_USERS
    return model.vectors(history, user).sum(dim=1)


def _multiplies_a_view(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found = model.vectors(history, user)
    view = found.view(-1, DIM)
    view *= 3
    return found.sum(dim=1)


def _subtracts_from_columns(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found = model.vectors(history, user)
    found[:, :4].sub_(1.0)
    functional.relu(found[:, 2:6], inplace=True)
    return found.sum(dim=1)


def _writes_out(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found = model.vectors(history, user)
    torch.mul(found, 2, out=found)
    model.relu(found)
    return found.sum(dim=1)


def _compares_shapes_in_a_set_and_assigns(model: Model, history: Tensor, user: Tensor) -> Tensor:
    rows, places = model.items(history), torch.arange(user.size(0))
    model.kept = rows  # type: ignore[assignment]
    if rows.dim() not in {2, 3}:
        raise ValueError("dims")
    if len({rows.shape[:2], history.shape}) > 1:
        raise ValueError("shapes")
    chosen = torch.zeros(rows.shape[0], 2)
    chosen[places, user % 2] = rows.sum(dim=(1, 2))
    return chosen[:, 1] * model.users(user).sum(dim=1)


def _assigns_to_the_last_dimension(model: Model, history: Tensor, user: Tensor) -> Tensor:
    rows = model.items(history)
    found = torch.zeros(*rows.shape)
    found[:, :, torch.tensor([0, 3, 5])] = rows[:, :, :3] * 2
    return (found.sum(dim=1) * model.users(user)).sum(dim=1)


def _ties_a_layer(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found: Tensor = model.tied(model.vectors(history, user))
    return found.sum(dim=1)


def _keeps_what_it_moves(model: Model, history: Tensor, user: Tensor) -> Tensor:
    model.scale = model.scale.to(user.device)
    return (model.vectors(history, user) * model.scale).sum(dim=1)


def _takes_unique_items(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found, places = torch.unique(history, return_inverse=True)
    return (model.items.weight.sum() * 0 + model.items(found)[places].sum(dim=1) * model.users(user)).sum(
        dim=1
    )


def _sums_what_is_no_padding(model: Model, history: Tensor, user: Tensor) -> Tensor:
    row, place = (history != 0).nonzero(as_tuple=True)
    rows = model.items(history[row, place])
    return (torch.zeros(history.size(0), DIM).index_add(0, row, rows) * model.users(user)).sum(dim=1)


@torch.jit.script
def _scripted(rows: dict[str, Tensor]) -> Tensor:
    found: dict[str, Tensor] = {}
    for name, one in rows.items():
        if not name.endswith("__offsets"):
            found[name] = one
    return found["user"]


def _calls_script(model: Model, history: Tensor, user: Tensor) -> Tensor:
    return model.vectors(history, _scripted({"user": user})).sum(dim=1)


_RIGHT = (
    _clamps_its_input,
    _assigns_to_its_input,
    _adds_to_its_input,
    _splits_heads_of_its_rows,
    _brings_ids_into_range,
    _multiplies_a_view,
    _subtracts_from_columns,
    _writes_out,
    _compares_shapes_in_a_set_and_assigns,
    _assigns_to_the_last_dimension,
    _ties_a_layer,
    _keeps_what_it_moves,
    _takes_unique_items,
    _sums_what_is_no_padding,
    _calls_script,
)


def _example() -> tuple[Tensor, Tensor]:
    return history("right"), ids(_NUM_USERS).squeeze(1)


@pytest.mark.parametrize("score", _RIGHT)
def test_graphs_predict_what_the_code_does(score: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    check_converted(Model(score).eval(), _example())


def test_a_weight_that_is_read_as_a_whole_is_no_table() -> None:
    with pytest.raises(
        ExportError, match=r"tables: got 'items\.weight', which is read as a whole at .*test_code"
    ):
        converted(Model(_ties_a_layer), PlainOptions(inputs=_example(), tables=("items",)))


def _decides_by_the_number_of_rows(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found = model.vectors(history, user).sum(dim=1)
    return found * 2 if history.size(0) == 1 else found


def _counts_its_calls(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found = model.vectors(history, user).sum(dim=1) + model.calls
    model.calls += 1
    return found


def _trains(model: Model, history: Tensor, user: Tensor) -> Tensor:
    model.train()
    return functional.dropout(model.vectors(history, user), training=model.training).sum(dim=1)


def _draws(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found = functional.dropout(model.vectors(history, user), training=model.training)
    found = functional.dropout(found)  # first
    return found.sum(dim=1) + torch.randn(found.size(0))  # second


def _counts_from_the_end(model: Model, history: Tensor, user: Tensor) -> Tensor:
    return (model.items(history).sum(dim=1) * model.users.weight[user]).sum(dim=1)


def _loops_over_rows(model: Model, history: Tensor, user: Tensor) -> Tensor:
    return torch.stack([model.vectors(a[None], b[None]).sum() for a, b in zip(history, user, strict=True)])


def _asks_numpy(model: Model, history: Tensor, user: Tensor) -> Tensor:
    return model.vectors(torch.from_numpy(history.numpy()), user).sum(dim=1)


def _loops_by_numpy(model: Model, history: Tensor, user: Tensor) -> Tensor:
    counts = [len(np.unique(row)) for row in history.cpu().numpy()]
    return model.vectors(history, user).sum(dim=1) * torch.tensor(counts)


def _branches(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found = model.vectors(history, user).sum(dim=1)
    return found * 2 if bool((history == 0).any()) else found


def _counts_items_of_the_batch(model: Model, history: Tensor, user: Tensor) -> Tensor:
    return model.vectors(history, user).sum(dim=1) + functional.one_hot(user).sum(dim=1)


def _maps_over_rows(model: Model, history: Tensor, user: Tensor) -> Tensor:
    return torch.vmap(torch.dot)(model.items(history).sum(dim=1), model.users(user))


def _looks_for_its_rows(model: Model, history: Tensor, user: Tensor) -> Tensor:
    found = model.vectors(history, user).sum(dim=1)
    return found * 2 if history.size(0) in {2, 4} else found


def _looks_its_rows_up(model: Model, history: Tensor, user: Tensor) -> Tensor:
    return model.vectors(history, user).sum(dim=1) * {4: 2.0}.get(user.size(0), 1.0)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (_looks_for_its_rows, r"control flow.* looked up among numbers\. At .*test_code"),
        (_looks_its_rows_up, r"control flow.* looked up among numbers\. At .*test_code"),
        (_counts_items_of_the_batch, r"one_hot\(\) without num_classes.* At .*test_code.*NUM_CLASSES"),
        (_maps_over_rows, r"torch\.vmap takes no .* At .*test_code.*einsum"),
        (_loops_over_rows, r"cannot be iterated\. At .*test_code.*in place of a loop over rows"),
        (
            _asks_numpy,
            r"got a tensor of a batch\)\. At .*test_code.*Write the whole function from this line to its return",
        ),
        (
            _loops_by_numpy,
            r"\.numpy\(\) is not supported for a batch's tensors\. At .*test_code.*Write the whole function",
        ),
        (_branches, r"control flow .*from what a batch holds.* At .*test_code.*torch\.where"),
    ],
)
def test_what_python_does_by_rows_is_refused_with_what_to_write(
    score: Callable[..., Tensor], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError, match=message) as refused:
        converted(Model(score).eval(), PlainOptions(inputs=_example()))
    assert not re.search("Proxy|symbolic", str(refused.value))
    assert capfd.readouterr() == ("", "")


def _normalizes_a_weight(model: Model, history: Tensor, user: Tensor) -> Tensor:
    model.users.weight.div_(model.users.weight.norm(dim=1, keepdim=True))
    return model.vectors(history, user).sum(dim=1)


def _sets_a_weight(model: Model, history: Tensor, user: Tensor) -> Tensor:
    model.users.weight.data = functional.normalize(model.users.weight.data, dim=1)
    return model.vectors(history, user).sum(dim=1)


@pytest.mark.parametrize(
    ("score", "place"), [(_normalizes_a_weight, r" at .*test_code\.py:\d+ in"), (_sets_a_weight, "")]
)
def test_a_forward_that_changes_a_weight_is_refused_and_changes_none(
    score: Callable[..., Tensor], place: str
) -> None:
    model = Model(score).eval()
    before = model.users.weight.detach().clone()
    with pytest.raises(ExportError, match=f"forward changes the weight 'users.weight'{place}"):
        converted(model, PlainOptions(inputs=_example()))
    assert torch.equal(model.users.weight, before)


@pytest.mark.parametrize(
    ("score", "example", "message"),
    [
        (
            _decides_by_the_number_of_rows,
            _example(),
            "other numbers for 1 of the example's rows than for the same",
        ),
        (_counts_its_calls, _example(), "forward changes the buffer 'calls'"),
        (_trains, _example(), r"because forward calls self\.train\(\)"),
        (
            _draws,
            _example(),
            r"draws random numbers when it predicts.*: \S*test_code\.py:\d+ in _draws: `[^`]*# first` and "
            r"\S*test_code\.py:\d+ in _draws: `[^`]*# second`\. Dropout",
        ),
        (
            _counts_from_the_end,
            (history("right"), ids(_NUM_USERS).squeeze(1) - _NUM_USERS),
            r"inputs: user: got ID -\d+, expected IDs from 0 to 99, the rows of 'users'",
        ),
    ],
)
def test_what_answers_cannot_follow_is_refused(
    score: Callable[..., Tensor], example: Any, message: str
) -> None:
    torch.manual_seed(0)
    with pytest.raises(ExportError, match=message) as refused:
        converted(Model(score).eval(), PlainOptions(inputs=example))
    assert not re.search("Proxy|FakeTensor", str(refused.value))


def test_rows_that_forward_computes_are_no_tables() -> None:
    def score(model: Model, history: Tensor, user: Tensor) -> Tensor:
        rows = functional.normalize(model.users.weight, dim=1)[user]
        return (rows * functional.embedding(history, model.items.weight * 2).sum(dim=1)).sum(dim=1)

    with pytest.raises(ExportError, match=r"rows that forward computes at .*test_code.* compute these once"):
        converted(Model(score).eval(), PlainOptions(inputs=_example()))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_module_under_torchscript_is_refused() -> None:
    with torchscript.quiet():
        model = torch.jit.script(nn.Sequential(nn.Embedding(100, DIM), nn.Linear(DIM, 1)))
    with pytest.raises(ExportError, match="under TorchScript, expected the Python model"):
        converted(model, PlainOptions(inputs=(torch.arange(8),)))


def test_tables_of_half_precision_are_refused() -> None:
    model = Model(lambda model, history, user: model.vectors(history, user).sum(dim=1)).eval().half()
    with pytest.raises(ExportError, match=r"'items\.weight' in float16, expected float32: call \.float\(\)"):
        converted(model, PlainOptions(inputs=_example()))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_models_of_other_numbers_are_refused(dtype: str) -> None:
    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.score = nn.Embedding(100, DIM), nn.Linear(DIM, 1)

        def forward(self, item: Tensor) -> Tensor:
            scores: Tensor = self.score(self.items(item))
            return scores

    model = Scored().to(getattr(torch, dtype)).eval()
    with pytest.raises(
        ExportError, match=rf"'\S*score.weight' in {dtype}, expected float32: call \.float\(\)"
    ):
        converted(model, PlainOptions(inputs=(torch.arange(8),)))


def test_tables_of_few_rows_are_served_if_there_are_no_others() -> None:
    def wrapped(model: Model, history: Tensor, user: Tensor) -> Tensor:
        return model.vectors(history % 17, user % 13).sum(dim=1)

    made = converted(Model(wrapped).eval(), PlainOptions(inputs=_example()))
    assert {plan.table.path: plan.kind for plan in made.plans} == {
        "items.weight": "computed",
        "users.weight": "computed",
    }


class Flat(nn.Module):
    """Bags of IDs side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(NUM_ITEMS, DIM, mode="sum")

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        if offsets is None:
            ids, offsets = ids.flatten(), torch.arange(ids.size(0)) * LENGTH
        return self.items(ids, offsets)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (
            (torch.arange(24), torch.arange(8) * 3),
            r"inputs: got IDs \[24\] and offsets \[8\], expected IDs as \[B, L\]",
        ),
        (
            (history("right"),),
            r"table 'items\.weight': got an EmbeddingBag that is given offsets at .*test_code",
        ),
    ],
)
def test_flat_bags_are_refused(example: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ExportError, match=message + ".*padding_idx"):
        converted(Flat().eval(), PlainOptions(inputs=example))
