"""What a program tells of its steps: their sizes and work, beside what its batch has.

Shape letters: B batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingCollection, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact
from recsys.artifact.programs import ProgramGraphs
from recsys.kernels import operators
from recsys.kernels.operators import LINEAR_DTYPES, StepTime
from tests.native.program_models import MODELS, loaded, ranking_inputs
from tests.support.helpers import sequence
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels
# More than a tile of rows.
_NUM_ROWS = 101


def profiled(artifact: LoadedArtifact, inputs: Sequence[Tensor], form: int = 0) -> tuple[StepTime, ...]:
    assert isinstance(artifact.graphs, ProgramGraphs)
    return artifact.graphs.profile(form, inputs)


def of_kind(steps: Sequence[StepTime], kind: str) -> list[StepTime]:
    return [step for step in steps if step.kind == kind]


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
def test_a_dlrm_has_the_work_of_its_layers_lookups_and_products(tmp_path: Path, dtype: str) -> None:
    plain, own = loaded(tmp_path / "a", MODELS["dlrm"](), linear_dtype=dtype)
    inputs = batch_of(own.signature, _NUM_ROWS, seed=1).inputs()
    steps = profiled(own, inputs)
    assert all(step.us > 0 for step in of_kind(steps, "linear"))
    assert sum(step.num_ids for step in of_kind(steps, "lookup")) == inputs[2].numel()
    assert {step.num_rows for step in steps if step.kind != "inputs"} == {_NUM_ROWS}
    layers = [weight.shape for weight in plain.graphs.tensors()[0].values() if weight.dim() == 2]
    linear = of_kind(steps, "linear")
    assert Counter((step.out_width, step.in_width) for step in linear) == Counter(map(tuple, layers))
    assert {step.dtype for step in linear} == {
        "float32" if dtype == "float32" else operators.multiplies_in(dtype)
    }
    for step in linear:
        assert step.flops == 2 * _NUM_ROWS * step.in_width * step.out_width
        assert step.num_bytes > 4 * _NUM_ROWS * step.in_width
    (dot,) = of_kind(steps, "dot")
    num_vectors = len(own.signature.sparse) + 1
    assert dot.out_width == num_vectors * (num_vectors - 1) // 2
    # Two operations for each number of a product.
    assert dot.flops == 2 * _NUM_ROWS * dot.out_width * (dot.in_width // num_vectors)


def test_a_profiled_call_is_like_others(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", MODELS["dlrm"]())
    batch = batch_of(own.signature, _NUM_ROWS, seed=1)
    kinds = [(step.kind, step.of) for step in profiled(own, batch.inputs())]
    assert [(step.kind, step.of) for step in profiled(own, batch_of(own.signature, 1).inputs())] == kinds
    dense, lengths, values = batch.inputs()
    wrong = values.clone()
    wrong[-1] = -1
    messages = []
    for call in (own.graphs.calls[0], lambda *inputs: profiled(own, inputs)):
        with pytest.raises(RuntimeError) as error:
            call(dense, lengths, wrong)
        messages.append(str(error.value))
        with pytest.raises(RuntimeError, match=r"inputs: got 2 tensors, expected 3"):
            call(dense, lengths)
    assert messages[0] == messages[1]


def test_a_ranking_form_repeats_the_rows_of_contexts(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", MODELS["dlrm"](), context=("dense_features", "f0"))
    inputs = ranking_inputs(own, (60, 0, 7))
    steps = profiled(own, inputs, form=1)
    assert of_kind(steps, "gather")
    # Contexts once, rows for each.
    assert {step.num_rows for step in of_kind(steps, "lookup")} == {3, 67}
    assert sum(step.num_ids for step in steps) == inputs[2].numel() + inputs[4].numel()


def test_steps_of_a_ranking_form_have_a_space(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", MODELS["dlrm"](), context=("dense_features", "f0"))
    steps = profiled(own, ranking_inputs(own, (60, 0, 7)), form=1)
    by_rows = {step.num_rows: step.space for step in steps if step.num_rows}
    assert (by_rows[3], by_rows[67]) == ("contexts", "rows")
    assert {step.space for step in of_kind(steps, "gather")} == {"rows"}
    plain = profiled(own, batch_of(own.signature, _NUM_ROWS, seed=1).inputs())
    assert {step.space for step in plain} == {""}


def of_histories(folder: Path, model: nn.Module) -> tuple[Tensor, tuple[StepTime, ...]]:
    """Return the numbers of items of rows, 0 to 5, and what the steps of a model take for them."""
    _, own = loaded(folder / "a", model)
    lengths = torch.arange(_NUM_ROWS) % 6
    values = torch.randint(0, 30, (int(lengths.sum()),))
    return lengths, profiled(own, (lengths, values))


class _EachId(nn.Module):
    """A layer over each ID of a bag, of which the first three count."""

    def __init__(self) -> None:
        super().__init__()
        self.items = EmbeddingCollection([sequence("items", 30, 4, ["history"])])
        self.turn = nn.Linear(4, 5)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        history = self.items(features)["history"]
        turned = self.turn(history.values()) * 2
        padded = type(history)(turned, lengths=history.lengths()).to_padded_dense(3)
        return padded.flatten(1)


def test_steps_for_each_id_run_over_ids(tmp_path: Path) -> None:
    lengths, steps = of_histories(tmp_path, _EachId())
    num_ids = int(lengths.clamp(max=3).sum())
    assert {step.num_ids for step in of_kind(steps, "sequence")} == {num_ids}
    (linear,) = of_kind(steps, "linear")
    assert linear.num_rows == num_ids
    assert linear.flops == 2 * num_ids * 4 * 5
    assert [step.num_rows for step in of_kind(steps, "each_id")] == [_NUM_ROWS]
    assert of_kind(steps, "from_ids")[0].num_rows == num_ids


class _Masked(_EachId):
    """A layer over the places of a history, of which those that hold items count."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        history = self.items(features)["history"]
        there = torch.arange(3).unsqueeze(0) < history.lengths().unsqueeze(1)
        return (self.turn(history.to_padded_dense(3)) * there.unsqueeze(2)).flatten(1)


def test_steps_for_the_first_places_count_these(tmp_path: Path) -> None:
    lengths, steps = of_histories(tmp_path, _Masked())
    (linear,) = of_kind(steps, "linear")
    assert linear.num_rows == _NUM_ROWS
    assert linear.flops == 2 * int(lengths.clamp(max=3).sum()) * 4 * 5
    assert not of_kind(steps, "first")
