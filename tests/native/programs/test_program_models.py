"""Programs of the zoo's models, and of what else computes rows, against torch's operators."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.as_torchrec.models.deepfm import SimpleDeepFMNN
from recsys.inputs.signature import IdPolicy
from recsys.kernels.operators import LINEAR_DTYPES
from tests.native.program_models import (
    FEATURES,
    MODELS,
    NUM_DENSE,
    SIZES,
    assert_near,
    dlrm,
    loaded,
    ranking_inputs,
    row_alone,
)
from tests.support.helpers import bag
from tests.support.kernels import needs_kernels
from tests.support.models.export_models import batch_of

pytestmark = needs_kernels


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("isa")
def test_a_program_predicts_what_the_graph_does(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", MODELS[name]())
    assert own.runs_program
    for num_rows in SIZES:
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert_near(found[output], expected, "float32")


def test_a_model_may_put_features_into_lists(tmp_path: Path) -> None:
    tables = EmbeddingBagCollection(tables=[bag("t", 20, 8, ["f", "g"]), bag("u", 30, 8, ["h"])])
    model = SimpleDeepFMNN(NUM_DENSE, tables, hidden_layer_size=9, deep_fm_dimension=4)
    plain, own = loaded(tmp_path / "a", model)
    assert own.runs_program
    for num_rows in SIZES:
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        (found,) = own.forward(*batch.inputs()).values()
        (expected,) = plain.forward(*batch.inputs()).values()
        assert_near(found, expected, "float32")


@pytest.mark.parametrize("dtype", LINEAR_DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("isa")
def test_a_row_has_the_same_bits_in_every_batch(tmp_path: Path, name: str, dtype: str) -> None:
    _, own = loaded(tmp_path / "a", MODELS[name](), linear_dtype=dtype)
    dense, lengths, values = batch_of(own.signature, 100, seed=4).inputs()
    (every,) = own.forward(dense, lengths, values).values()
    for row in (0, 1, 47, 48, 99):
        (found,) = own.forward(dense[row : row + 1], *row_alone(lengths, values, 100, row)).values()
        assert torch.equal(found[0], every[row])


@pytest.mark.parametrize("name", ["dlrm", "low_rank_dcn"])
@pytest.mark.parametrize("context", [("f0",), ("dense_features", "f0", "f2")], ids=str)
def test_ranking_forms_have_programs_too(tmp_path: Path, name: str, context: tuple[str, ...]) -> None:
    # The exporter compares the two forms with each other and with the float model.
    plain, own = loaded(tmp_path / "a", MODELS[name](), context=context)
    assert own.runs_program
    assert len(own.graphs.calls) == 2
    for rows in ((), (0,), (1,), (3, 0, 2), (100, 7)):
        inputs = ranking_inputs(own, rows)
        found_scores, expected = own.forward_ranking(*inputs), plain.forward_ranking(*inputs)
        for output in expected:
            assert_near(found_scores[output], expected[output], "float32")


def test_a_ranking_form_refuses_what_does_not_fit(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm(), context=("dense_features", "f0", "f2"))
    sound = ranking_inputs(own, (3, 2))
    dense, context_lengths, context_values, lengths, values, row_context = range(6)
    for at, make, text in [
        (dense, lambda x: x[:-1], "inputs: got"),
        (context_lengths, lambda x: x[:-1], "lengths: got|inputs: got"),
        (context_values, lambda x: x + 10**9, "values: got ID"),
        (lengths, lambda x: x[:-3], "inputs: got"),
        (values, lambda x: x[:-1], "lengths: got"),
        (row_context, lambda x: x[:-1], "inputs: got"),
        (row_context, lambda x: x + 1, "index out of range"),
        (row_context, lambda x: x - 1, "index out of range"),
        (row_context, lambda x: x.float(), "index"),
    ]:
        inputs = list(sound)
        inputs[at] = make(sound[at])
        with pytest.raises(RuntimeError, match=text):
            own.forward_ranking(*inputs)
    own.forward_ranking(*sound)


def test_tables_may_have_policies_of_their_own(tmp_path: Path) -> None:
    policies = {"t0": IdPolicy.HASH, "t1": IdPolicy.ZERO, "t2": IdPolicy.FMIX64}
    plain, own = loaded(tmp_path / "a", dlrm(), table_id_policies=policies)
    assert own.runs_program
    dense, lengths, values = batch_of(plain.signature, 30).inputs()
    of_slot = torch.repeat_interleave(torch.arange(len(FEATURES)), lengths.view(-1, 30).sum(1))
    for wrong in (-1, 10**6, 2**63 - 1, -(2**63)):
        changed = torch.where(of_slot < 3, wrong, values)
        for output, expected in plain.forward(dense, lengths, changed).items():
            assert_near(own.forward(dense, lengths, changed)[output], expected, "float32")
        for artifact in (plain, own):
            with pytest.raises(RuntimeError):
                artifact.forward(dense, lengths, torch.where(of_slot == 3, wrong, values))


def test_a_program_refuses_inputs_that_do_not_fit(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm())
    dense, lengths, values = batch_of(own.signature, 6).inputs()
    for inputs, text in [
        ((dense[:-1], lengths, values), r"inputs: got \[5, 5\], expected 5 numbers for each of 6 rows"),
        ((dense.double(), lengths, values), "inputs: got Double, expected float32"),
        ((dense, lengths[:-1], values), "lengths: got 29, expected a multiple of 5"),
        ((dense, lengths, values[:-1]), "lengths: got"),
        ((dense, lengths, values - 10**6), "values: got ID"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            own.forward(*inputs)


def test_programs_take_views_and_run_side_by_side(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm())
    dense, lengths, values = batch_of(own.signature, 20).inputs()
    (expected,) = own.forward(dense, lengths, values).values()
    views = (dense.t().contiguous().t(), lengths.repeat_interleave(2)[::2], values.repeat_interleave(2)[::2])
    with ThreadPoolExecutor(4) as pool:
        for (found,) in pool.map(lambda _: own.forward(*views).values(), range(50)):
            assert torch.equal(found, expected)


def test_programs_refuse_what_is_no_input(tmp_path: Path) -> None:
    _, own = loaded(tmp_path / "a", dlrm())
    dense, lengths, values = batch_of(own.signature, 6).inputs()
    for inputs, text in [
        ((dense, lengths), "inputs: got 2 tensors, expected 3"),
        ((dense.to("meta"), lengths, values), "expected a tensor in host memory"),
        ((dense, lengths.to_sparse(), values), "expected a tensor in host memory"),
        ((dense, lengths, values.int()), "expected int64"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            own.graphs.calls[0](*inputs)
    with pytest.raises(RuntimeError, match="Unable to cast"):
        own.graphs.calls[0](dense, lengths, 3)  # type: ignore[arg-type]


class Mixed(nn.Module):
    """Rows of which a part is computed by operators that mix the rows of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = EmbeddingBagCollection(tables=[bag("t", 20, 8, ["f"]), bag("u", 30, 8, ["g"])])
        self.first, self.second, self.third = nn.Linear(16, 8), nn.Linear(8, 8), nn.Linear(16, 1)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        pooled = self.rows(features).values()
        first = torch.relu(self.first(pooled))
        second = torch.sigmoid(self.second(first))
        centered = second - second.sum(dim=0, keepdim=True)
        score = self.third(torch.cat((first, centered), dim=1))
        return {"score": score.squeeze(1), "second": second, "shaped": first.reshape(-1, 2, 4)}


class Scaled(nn.Module):
    """Rows, and what a function makes of them."""

    def __init__(self, scale: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rows = EmbeddingBagCollection(tables=[bag("t", 20, 20, ["f"]), bag("u", 30, 20, ["g"])])
        self.scale = scale

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        pooled = self.rows(features).values()
        return {"pooled": pooled, "scaled": self.scale(pooled)}


class NormOfVectors(nn.Module):
    """A norm of each of the vectors of which a row is made."""

    def __init__(self, dim: int, **options: bool) -> None:
        super().__init__()
        self.dim, self.norm = dim, nn.LayerNorm(dim, **options)

    def forward(self, x: Tensor) -> Tensor:
        vectors: Tensor = self.norm(x.view(x.size(0), -1, self.dim))
        return vectors.flatten(1)


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": nn.LayerNorm(40),
    "layer_norm_of_vectors": NormOfVectors(8),
    "layer_norm_without_bias": NormOfVectors(20, bias=False),
    "layer_norm_without_weights": lambda x: functional.layer_norm(x, (40,), eps=0.1),
    "viewed": lambda x: x.view(x.size(0), 5, 8).sum(dim=1),
    "one_number": lambda x: torch.sigmoid(x.sum(dim=1, keepdim=True)).flatten(),
    "normalize": lambda x: functional.normalize(x, dim=1),
    "normalize_last": lambda x: functional.normalize(x, dim=-1, eps=0.5),
    "length": lambda x: x.norm(dim=1),
    "vector_norm": lambda x: x * torch.linalg.vector_norm(x, dim=1, keepdim=True),
    "clamped": lambda x: x / x.norm(dim=1, keepdim=True).clamp(min=0.3),
    "total": lambda x: torch.sigmoid((x / 3).sum(dim=1)),
    "share": lambda x: torch.clamp_min(x, 0.25) / torch.clamp_min(x, 0.25).sum(dim=-1, keepdim=True),
    "quotient": lambda x: torch.relu(x) / (torch.sigmoid(x) * 2),
    "sum_of_vectors": lambda x: (
        x.view(-1, 5, 8).sum(dim=1, keepdim=True).squeeze(1) - x.view(-1, 5, 8).select(1, 2)
    ),
}


@pytest.mark.parametrize("name", SCALES)
@pytest.mark.usefixtures("isa")
def test_norms_sums_and_quotients_are_steps(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", Scaled(SCALES[name]))
    assert own.runs_program
    for num_rows in SIZES:
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert found[output].shape == expected.shape
            torch.testing.assert_close(found[output], expected, rtol=1e-5, atol=1e-6)


#: Norms of other kinds, and over other or several dimensions; divisors with more numbers than what they divide;
#: quotients that are rounded. Most are regions.
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm_of_all": lambda x: functional.layer_norm(x.view(-1, 5, 8), (5, 8)),
    "one_norm": lambda x: x / x.norm(p=1.0, dim=1, keepdim=True).clamp_min(1e-6),
    "vectors": lambda x: x.view(-1, 5, 8).norm(dim=2),
    "wider": lambda x: x.sum(dim=1, keepdim=True) / torch.clamp_min(x, 0.25),
    "floor": lambda x: torch.div(x, 0.125, rounding_mode="floor"),
    "bounds": lambda x: torch.clamp(x[:, :1], min=x),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_norms_and_quotients_are_those_of_torch(tmp_path: Path, name: str) -> None:
    plain, own = loaded(tmp_path / "a", Scaled(OTHERS[name]))
    for num_rows in (1, 2, 50):
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            torch.testing.assert_close(found[output], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("isa")
def test_rows_of_a_request_may_be_compared(tmp_path: Path) -> None:
    plain, own = loaded(tmp_path / "a", Mixed(), batch="request")
    assert own.runs_program
    for num_rows in (1, 2, 50):
        batch = batch_of(plain.signature, num_rows, seed=num_rows)
        found = own.forward(*batch.inputs())
        for output, expected in plain.forward(*batch.inputs()).items():
            assert_near(found[output], expected, "float32")
