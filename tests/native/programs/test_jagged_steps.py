"""What programs compute for each ID of a bag, beside the same graph on torch's operators.

Shape letters: B batch, N number of IDs, S places, D embedding dim.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, JaggedTensor, KeyedJaggedTensor
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.programs import ProgramGraphs
from recsys.kernels import operators
from recsys.models.din import latest
from tests.native.program_models import ranking_inputs
from tests.native.programs.test_programs import metadata_of, refusals, write_delta
from tests.recsys.artifact.damage import same
from tests.support.helpers import bag, sequence
from tests.support.kernels import needs_kernels

pytestmark = needs_kernels
_SIZE, _DIM, _IDS = 5, 6, 30
fbgemm = torch.ops.fbgemm


def _of(history: JaggedTensor, values: Tensor) -> JaggedTensor:
    return JaggedTensor(values, lengths=history.lengths())


def _repeated(history: JaggedTensor, rows: Tensor) -> Tensor:
    found: Tensor = torch.repeat_interleave(
        rows, history.lengths(), dim=0, output_size=history.values().size(0)
    )
    return found


def _first(history: JaggedTensor, values: Tensor, padding: float = 0.0) -> Tensor:
    return _of(history, values).to_padded_dense(_SIZE, padding)


def _with_sums(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b, a - b, a * b], dim=1)


def _hop(m: Any, history: JaggedTensor, query: Tensor) -> Tensor:
    scores = (history.values() * _repeated(history, query)).sum(1, keepdim=True)
    shares = torch.softmax(_first(history, scores, -1e30), dim=1)
    return m.turn((shares * _first(history, history.values())).sum(1))


#: From a module, a history and the row's vector ``[B, D]``.
STEPS: dict[str, Callable[[Any, JaggedTensor, Tensor], Tensor]] = {
    "layers": lambda m, h, _: _first(h, m.layers(h.values())).flatten(1),
    "padding": lambda m, h, _: _first(h, m.score(h.values()), -3.5).flatten(1),
    "rows_with_padding": lambda _, h, __: _first(h, h.values(), 2.0).flatten(1),
    "backwards": lambda m, h, x: latest(
        _of(h, m.wide(torch.cat([h.values(), _repeated(h, x)], 1))), _SIZE
    ).flatten(1),
    "vectors_and_sums": lambda m, h, x: _first(
        h, m.four(_with_sums(h.values(), _repeated(h, x)))
    ).flatten(1),
    "weights": lambda m, h, _: _first(h, functional.gelu(m.norm(h.values() * m.scale + m.scale * 2))).flatten(1),
    "a_number_of_each": lambda m, h, _: _first(h, m.score(h.values()).squeeze(1).unsqueeze(1)).squeeze(2),
    "shares_of_each": lambda _, h, __: _first(h, torch.softmax(h.values(), dim=1)).flatten(1),
    "heads": lambda _, h, x: _first(
        h, torch.einsum("nhd,nhd->nh", h.values().view(-1, 2, 3), _repeated(h, x).view(-1, 2, 3))
    ).flatten(1),
    "two_hops": lambda m, h, x: _hop(m, h, x + _hop(m, h, x)),
    "chosen": lambda _, h, x: _first(
        h, torch.where(h.values() > _repeated(h, x), h.values(), torch.zeros_like(h.values()))
    ).flatten(1),
    "by_another_operator": lambda m, h, _: torch.cat(
        [
            fbgemm.jagged_2d_to_dense(m.layers(h.values()), h.offsets(), _SIZE).flatten(1),
            fbgemm.jagged_1d_to_dense(m.score(h.values()).squeeze(1), h.offsets(), _SIZE, 1),
        ],
        dim=1,
    ),
    "a_mask": lambda _, h, __: _first(h, torch.ones_like(h.values()[:, :1])).flatten(1),
}  # fmt: skip


#: The same, of all IDs of a bag.
SUMS: dict[str, Callable[[Any, JaggedTensor, Tensor], Tensor]] = {
    "sums": lambda m, h, _: torch.segment_reduce(m.layers(h.values()), "sum", lengths=h.lengths()),
    "sums_of_rows": lambda _, h, __: torch.segment_reduce(h.values(), "sum", lengths=h.lengths(), unsafe=True),
    "weighted": lambda m, h, x: torch.segment_reduce(
        h.values() * m.four(_with_sums(h.values(), _repeated(h, x)))[:, :1], "sum", lengths=h.lengths()
    ),
    "two_hops_of_sums": lambda _, h, x: torch.segment_reduce(
        h.values() * _repeated(h, torch.segment_reduce(h.values() * _repeated(h, x), "sum", lengths=h.lengths())),
        "sum", lengths=h.lengths(),
    ),
}  # fmt: skip


class Jagged(nn.Module):
    def __init__(self, steps: Mapping[str, Callable[..., Tensor]] = STEPS) -> None:
        super().__init__()
        self._steps = steps
        self.bags = EmbeddingBagCollection([bag("users", 20, _DIM, ["user"])])
        self.items = EmbeddingCollection([sequence("items", _IDS, _DIM, ["history"])])
        self.layers = nn.Sequential(nn.Linear(_DIM, 9), nn.ReLU(), nn.Linear(9, 4), nn.Sigmoid())
        self.score, self.turn = nn.Linear(_DIM, 1), nn.Linear(_DIM, _DIM)
        self.wide, self.four = nn.Linear(2 * _DIM, 3), nn.Linear(4 * _DIM, 3)
        self.norm, self.scale = nn.LayerNorm(_DIM), nn.Parameter(torch.rand(_DIM))

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        history, rows = self.items(features)["history"], self.bags(features).values()
        return {name: step(self, history, rows) for name, step in self._steps.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with a ranking form, whose contexts are histories."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("jagged") / "a"
    export_model(Jagged().eval(), path, ExportConfig(context=("history",)))
    return path


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[LoadedArtifact, LoadedArtifact]:
    """The program and the graph."""
    own = load_artifact(folder)
    assert isinstance(own.graphs, ProgramGraphs)
    return own, load_artifact(folder, scripted=True)


def inputs_of(own: LoadedArtifact, lengths: list[int]) -> list[Tensor]:
    """Return a batch: a user of each row, and histories of some lengths."""
    by_name = {"user": [1] * len(lengths), "history": lengths}
    names = [sparse.name for sparse in own.signature.sparse]
    assert set(names) == set(by_name)
    generator = torch.Generator().manual_seed(len(lengths))
    every = [length for name in names for length in by_name[name]]
    return [torch.tensor(every), torch.randint(0, 20, (sum(every),), generator=generator)]


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedArtifact, LoadedArtifact]:
    """The program and the graph of a model that sums up bags, of rows that are stored with padding."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("sums") / "a"
    export_model(Jagged(SUMS).eval(), path, ExportConfig(data_type=DataType.INT4))
    own = load_artifact(path)
    assert isinstance(own.graphs, ProgramGraphs)
    return own, load_artifact(path, scripted=True)


LENGTHS = {
    "one": [3],
    "empty": [0],
    "all_empty": [0] * 7,
    "longest": [_SIZE, _SIZE + 1, 400],
    "long_among_short": [0, 2, 0, 1000, 1, 0],
    "tiles": [i % 9 for i in range(130)],
}


def assert_alike(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(
            found[name], expected[name], rtol=1e-5, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", LENGTHS)
def test_each_id_is_computed_as_torch_does(both: tuple[LoadedArtifact, LoadedArtifact], name: str) -> None:
    inputs = inputs_of(both[0], LENGTHS[name])
    assert_alike(*(model.forward(*inputs) for model in both))


@pytest.mark.parametrize("name", LENGTHS)
def test_bags_are_summed_up_as_torch_does(sums: tuple[LoadedArtifact, LoadedArtifact], name: str) -> None:
    inputs = inputs_of(sums[0], LENGTHS[name])
    found, expected = (model.forward(*inputs) for model in sums)
    for key, numbers in expected.items():
        # Sums of many are added up in another order.
        torch.testing.assert_close(
            found[key], numbers, rtol=1e-4, atol=1e-5 * (1 + float(numbers.abs().max()))
        )


@pytest.mark.parametrize("sizes", [(1, 1), (60, 7)])
def test_histories_of_contexts_are_computed_for_each_row(
    both: tuple[LoadedArtifact, LoadedArtifact], sizes: tuple[int, int]
) -> None:
    inputs = ranking_inputs(both[0], sizes)
    assert_alike(*(model.forward_ranking(*inputs) for model in both))


@pytest.mark.parametrize("of", ["both", "sums"])
def test_a_row_has_the_same_bits_beside_any_others(request: pytest.FixtureRequest, of: str) -> None:
    own, _ = request.getfixturevalue(of)
    lengths, ids = inputs_of(own, LENGTHS["tiles"])
    bags = ids.split(lengths.tolist())
    num_rows = len(LENGTHS["tiles"])
    whole = own.forward(lengths, ids)
    for row in (0, 8, 61, num_rows - 1):
        alone = own.forward(lengths[row::num_rows], torch.cat(bags[row::num_rows]))
        assert same({name: values[row : row + 1] for name, values in whole.items()}, alone)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda lengths, ids: (lengths[:-1], ids), "lengths"),
        (lambda lengths, ids: (lengths, ids[:-1]), "lengths"),
        (lambda lengths, ids: (lengths.index_fill(0, torch.tensor([0]), -1), ids), "lengths"),
        (lambda lengths, ids: (lengths.index_fill(0, torch.tensor([0]), 1 << 40), ids), "lengths"),
        # Also of an ID that is behind the last place.
        (lambda lengths, ids: (lengths, ids.index_fill(0, torch.tensor([len(ids) - 1]), _IDS)), "0 <= ID < 30"),
    ],
)  # fmt: skip
def test_wrong_lengths_and_ids_are_refused(
    both: tuple[LoadedArtifact, LoadedArtifact], change: Callable[..., tuple[Tensor, Tensor]], text: str
) -> None:
    inputs = change(*inputs_of(both[0], [1, 2, 400]))
    with pytest.raises(Exception, match=text):
        both[0].forward(*inputs)


def test_no_numbers_make_steps_read_elsewhere(folder: Path) -> None:
    part = (folder / "program.safetensors").read_bytes()
    artifact = load_artifact(folder)
    rows, inputs = artifact.rows.ranks[0].rows, inputs_of(artifact, LENGTHS["longest"])
    (length,) = struct.unpack_from("<Q", part)
    changed_at: list[int] = []
    for name, tensor in metadata_of(part).items():
        begin, end = (8 + length + offset for offset in tensor.get("data_offsets", (0, 0)))
        # The steps, and the columns that layers over vectors and sums of them take.
        if name == "plans.0" or tensor.get("shape", [])[1:] == [4]:
            changed_at += range(begin, end, 5 if name != "plans.0" else 61)
    num_refused = refusals(part, changed_at, rows, inputs)
    assert len(changed_at) // 2 < num_refused < 2 * len(changed_at)


COLUMNS = {
    "source": [[0, 24, 1, 1], "columns\\[0\\]: expected some of 24"],
    "before": [[0, -1, 1, 1], "columns\\[0\\]: expected some of 24"],
    "count": [[0, 1, 24, 1], "columns\\[0\\]: expected some of 24"],
    "none": [[0, 0, 0, 1], "columns\\[0\\]: expected some of 24"],
    "large": [[0, 0, 2**63 - 1, 1], "columns\\[0\\]: expected some of 24"],
    "target": [[2**63 - 1, 0, 1, 1], "columns\\[0\\]: expected some of 24"],
    "sign": [[0, 0, 1, 2], "columns\\[0\\]: expected some of 24"],
    "more": [[1000, 0, 1, 1], "got weights of 3 by 1001"],
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_a_layer_does_not_have_are_refused(folder: Path, name: str) -> None:
    part = (folder / "program.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", part)
    (columns,) = (t for t in metadata_of(part).values() if t.get("shape", [])[1:] == [4])
    run, text = COLUMNS[name]
    changed = bytearray(part)
    struct.pack_into("<4q", changed, 8 + length + columns["data_offsets"][0], *run)
    with pytest.raises(RuntimeError, match=str(text)):
        operators.stored_program(bytes(changed)).bind(load_artifact(folder).rows.ranks[0].rows, {}, "float32")


def test_deltas_change_what_is_computed_for_each_id(folder: Path, tmp_path: Path) -> None:
    own, plain = load_artifact(folder), load_artifact(folder, scripted=True)
    inputs = inputs_of(own, LENGTHS["tiles"])
    before = own.forward(*inputs)
    changed = {
        f"model.{name}": torch.rand_like(tensor) - 0.5
        for name, tensor in Jagged().state_dict().items()
        if not name.startswith(("bags", "items"))
    }
    for artifact, name in ((own, "own"), (plain, "plain")):
        write_delta(tmp_path / name, artifact, changed)
        apply(prepare(artifact.rows, tmp_path / name))
    after = own.forward(*inputs)
    assert_alike(after, plain.forward(*inputs))
    assert not same(after, before)
