"""Batches padded to buckets, on a stand-in for a CUDA device: the same outputs, and what runs by ``forward``.

Shape letters: B batch, F features, N number of IDs.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.batches.samples import Batch
from recsys.artifact.cuda.graphs import BucketedForward, Capture, CudaGraphOptions
from recsys.artifact.delta import apply as delta
from recsys.artifact.graphs import LoadedGraphs
from recsys.artifact.load import load_artifact
from recsys.errors import TargetError
from recsys.inputs.signature import Signature
from tests.recsys.artifact.delta.deltas import write_delta
from tests.support.cuda_graphs import HostRecorder, StandIn, stand_in
from tests.support.helpers import bag
from tests.support.models.export_models import (
    CASES,
    CUDA_CASES,
    ModelCase,
    arguments,
    assert_close,
    batch_of,
    exported,
)

ROWS = (1, 8, 32)
POOLED = [
    "dlrm",
    "bare collection",
    "bare weighted collection",
    "weighted and unweighted",
    "several collections",
    "mixed row types",
]


class Ranks(nn.Module):
    """Floats and integers of dense and pooled inputs, and of the number of rows, which host memory tells."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.ebc = EmbeddingBagCollection([bag("t", 40, 8, ["f", "g"]), bag("u", 9, 8, ["g"], "MEAN")])
        self.layer = nn.Linear(3, 24)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        pooled = self.ebc(features).values().reshape(features.stride(), 3, 8)
        both = pooled + self.layer(dense).reshape(-1, 3, 8)
        return {"best": both.sum(dim=2).argmax(dim=1), "scores": both.sum(dim=2), "none": dense[:, 0] > 9}


@pytest.fixture(scope="module", params=[*POOLED, "ranks", "dlrm in bfloat16"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """A model, loaded twice. Not to be changed."""
    name, _, dtype = request.param.partition(" in ")
    model = ModelCase(make=Ranks) if name == "ranks" else CUDA_CASES[name]
    path = tmp_path_factory.mktemp("artifacts") / "a"
    return stand_in(path, model, ROWS, dense_dtype=dtype or "float32")


@pytest.fixture
def ranker(tmp_path: Path) -> StandIn:
    """Weighted and unweighted collections beside two dense inputs."""
    return stand_in(tmp_path / "a", CASES["weighted and unweighted"], ROWS)


def padded(signature: Signature, batch: Batch, num_rows: int) -> Batch:
    """The same with rows of zeros and without IDs behind."""
    more = num_rows - batch.num_rows
    by_feature = batch.lengths.reshape(len(signature.sparse), batch.num_rows)
    return replace(
        batch,
        dense=tuple(torch.cat([tensor, torch.zeros(more, tensor.size(1))]) for tensor in batch.dense),
        lengths=torch.cat([by_feature, by_feature.new_zeros(by_feature.size(0), more)], dim=1).reshape(-1),
        num_rows=num_rows,
    )


def assert_replayed(case: StandIn, batch: Batch) -> None:
    """The batch is replayed, and gets the outputs of the padded batch, bit for bit."""
    found = case.replayed(*batch.inputs())
    assert found is not None
    bucket = next(rows for rows in ROWS if rows >= batch.num_rows)
    whole = case.on_cpu.forward(*padded(case.on_cpu.signature, batch, bucket).inputs())
    assert list(found) == list(whole)
    for name, output in whole.items():
        assert found[name].dtype == output.dtype
        assert torch.equal(found[name], output[: batch.num_rows])


@pytest.mark.parametrize("empty", [False, True], ids=["with IDs", "without IDs"])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 8, 9, 32])
def test_batches_of_all_sizes(case: StandIn, num_rows: int, empty: bool) -> None:
    assert_replayed(case, batch_of(case.on_cpu.signature, num_rows, seed=num_rows, empty=empty))


def test_outputs_of_padded_batches_are_those_of_batches(case: StandIn) -> None:
    if case.on_cpu.signature.has_integers:
        pytest.skip("scores may tie")
    tolerance = 2.0**-16 if case.on_cpu.target.dense_dtype == "float32" else 2.0**-5
    for num_rows in (1, 3, 20):
        batch = batch_of(case.on_cpu.signature, num_rows, seed=num_rows)
        found = case.replayed(*batch.inputs())
        assert found is not None
        assert_close(found, case.on_cpu.forward(*batch.inputs()), tolerance)


def test_outputs_belong_to_the_caller(case: StandIn) -> None:
    batches = [batch_of(case.on_cpu.signature, 5, seed=seed) for seed in range(3)]
    found = [case.replayed(*batch.inputs()) for batch in batches]
    for batch, outputs in zip(batches, found, strict=True):
        again = case.replayed(*batch.inputs())
        assert outputs is not None
        assert again is not None
        assert all(torch.equal(outputs[name], again[name]) for name in outputs)


def test_a_batch_without_rows(case: StandIn) -> None:
    batch = batch_of(case.on_cpu.signature, 0)
    found = case.replayed(*batch.inputs())
    expected = case.on_cpu.forward(*batch.inputs())
    assert found is not None
    assert {name: output.shape for name, output in found.items()} == {
        name: output.shape for name, output in expected.items()
    }


def test_too_many_rows_run_by_forward(case: StandIn) -> None:
    assert case.replayed(*batch_of(case.on_cpu.signature, ROWS[-1] + 1).inputs()) is None


class TestCapacity:
    def test_more_ids_than_a_bucket_holds_take_the_next(self, tmp_path: Path) -> None:
        case = stand_in(tmp_path / "a", CASES["dlrm"], (1, 8), ids_per_row=300)
        signature = case.on_cpu.signature
        # A group of lookups for each pooling; each has room for 1024 IDs, and for 2400 in the second bucket.
        for num_ids, is_replayed in ((1024, True), (1025, True), (2400, True), (2401, False), (5000, False)):
            for feature in (0, 1):
                lengths = torch.zeros(4, dtype=torch.int64)
                lengths[feature] = num_ids
                values = torch.randint(0, 50, (num_ids,))
                batch = Batch(
                    dense=(torch.randn(1, 5),), lengths=lengths, values=values, weights=None, num_rows=1
                )
                found = case.replayed(*batch.inputs())
                assert (found is not None) == is_replayed
                if found is not None:
                    assert_close(found, case.on_cpu.forward(*batch.inputs()), 2.0**-12)
        assert signature.sparse[0].pooling != signature.sparse[1].pooling

    def test_a_feature_that_is_looked_up_twice_needs_more(self, tmp_path: Path) -> None:
        def make() -> nn.Module:
            return EmbeddingBagCollection([bag("t", 40, 8, ["f"]), bag("u", 40, 8, ["f"])])

        case = stand_in(tmp_path / "a", ModelCase(make=make), (1,))
        for num_ids, is_replayed in ((512, True), (513, False)):
            inputs = torch.tensor([num_ids]), torch.zeros(num_ids, dtype=torch.int64)
            assert (case.replayed(*inputs) is not None) == is_replayed

    def test_zeros_lie_behind_the_ids(self, ranker: StandIn) -> None:
        signature = ranker.on_cpu.signature
        many, few = batch_of(signature, 8, seed=1), batch_of(signature, 8, empty=True)
        bucketed = ranker.graphs.calls[0]
        assert isinstance(bucketed, BucketedForward)
        places = bucketed._buckets[1]._parts.on_host
        assert_replayed(ranker, many)
        assert any(int(place[-1]) == 0 and bool(place.any()) for place in places if place.dim() == 1)
        assert_replayed(ranker, few)
        assert not any(bool(place.any()) for place in places if place.numel() >= 1024)


class TestOtherInputs:
    """``forward`` tells what is wrong with inputs that do not fit together."""

    def test_numbers_of_rows(self, ranker: StandIn) -> None:
        age, price, lengths, values, weights = batch_of(ranker.on_cpu.signature, 4).inputs()
        assert ranker.replayed(age[:3], price, lengths, values, weights) is None
        assert ranker.replayed(age, price[:, :1], lengths, values, weights) is None
        assert ranker.replayed(age, price, lengths[:-1], values, weights) is None
        assert ranker.replayed(age, price) is None

    def test_types(self, ranker: StandIn) -> None:
        age, price, lengths, values, weights = batch_of(ranker.on_cpu.signature, 4).inputs()
        assert ranker.replayed(age.double(), price, lengths, values, weights) is None

    def test_wrong_ids_raise_and_the_next_batch_is_right(self, ranker: StandIn) -> None:
        batch = batch_of(ranker.on_cpu.signature, 4)
        wrong = batch.values.clone()
        wrong[0] = 2**40
        with pytest.raises(RuntimeError, match="idx < num_rows"):
            ranker.replayed(*replace(batch, values=wrong).inputs())
        with pytest.raises(RuntimeError):
            ranker.replayed(*replace(batch, lengths=batch.lengths + 1).inputs())
        assert_replayed(ranker, batch)


class TestThreads:
    def test_all_get_their_own_answers(self, ranker: StandIn) -> None:
        signature = ranker.on_cpu.signature
        batches = [batch_of(signature, num_rows, seed=num_rows) for num_rows in (1, 2, 5, 8, 20) * 20]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda batch: ranker.replayed(*batch.inputs()), batches))
        assert sum(outputs is not None for outputs in found) >= 20
        for batch, outputs in zip(batches, found, strict=True):
            if outputs is not None:
                assert_close(outputs, ranker.on_cpu.forward(*batch.inputs()))

    def test_a_batch_whose_bucket_is_in_use_runs_by_forward(self, ranker: StandIn) -> None:
        batch, other = (batch_of(ranker.on_cpu.signature, num_rows) for num_rows in (5, 20))
        began, may_end = threading.Event(), threading.Event()

        def wait() -> None:
            if threading.current_thread() is not threading.main_thread():
                began.set()
                may_end.wait()

        ranker.recorder.before = wait
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(ranker.replayed, *batch.inputs())
            began.wait()
            assert ranker.replayed(*batch.inputs()) is None
            assert ranker.replayed(*other.inputs()) is not None
            may_end.set()
            assert first.result() is not None
        assert ranker.replayed(*batch.inputs()) is not None

    def test_a_failure_leaves_the_bucket_free(self, ranker: StandIn) -> None:
        def fail() -> None:
            raise RuntimeError("CUDA error")

        batch = batch_of(ranker.on_cpu.signature, 5)
        ranker.recorder.before = fail
        with pytest.raises(RuntimeError, match="CUDA error"):
            ranker.replayed(*batch.inputs())
        ranker.recorder.before = lambda: None
        assert_replayed(ranker, batch)


class TestDeltas:
    def test_rows_change_in_place(self, ranker: StandIn, tmp_path: Path) -> None:
        self._check(ranker, tmp_path / "rows.delta", with_dense=False)
        assert ranker.recorder.num_records == len(ROWS)

    def test_dense_weights_are_recorded_anew(
        self, ranker: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(LoadedGraphs, "warm", lambda *_: None)  # forward does not run here
        self._check(ranker, tmp_path / "dense.delta", with_dense=True)
        assert ranker.recorder.num_records == 2 * len(ROWS)

    def _check(self, ranker: StandIn, path: Path, *, with_dense: bool) -> None:
        batch = batch_of(ranker.on_cpu.signature, 7)
        before = ranker.on_cpu.forward(*batch.inputs())
        changes = {"plain.users": range(40), "plain.ads": range(9), "weighted.tags": range(25)}
        write_delta(path, ranker.rows, changes, with_dense=with_dense)
        prepared = delta.prepare(ranker.rows, path)
        assert_replayed(ranker, batch)
        undo = delta.apply(prepared)
        delta.apply(delta.prepare(ranker.on_cpu.rows, path))
        changed = ranker.on_cpu.forward(*batch.inputs())
        assert not torch.allclose(changed["output_0"], before["output_0"])
        assert_replayed(ranker, batch)
        delta.apply(undo)
        found = ranker.replayed(*batch.inputs())
        assert found is not None
        assert_close(found, before)


class TestRefusals:
    def test_numbers_out_of_range(self) -> None:
        with pytest.raises(ValueError, match=r"cuda_graph_rows: got \[8, 0\], expected"):
            CudaGraphOptions(rows=(8, 0))
        with pytest.raises(ValueError, match="cuda_graph_ids_per_row: got -1"):
            CudaGraphOptions(rows=(8,), ids_per_row=-1)

    def test_targets_of_other_devices(self, tmp_path: Path) -> None:
        exported(CASES["dlrm"].make(), tmp_path / "a", targets=(("cpu",), ("cuda:0", "cuda:1")))
        with pytest.raises(TargetError, match=r"got \[8\] for target 'cpu', expected a target of one CUDA"):
            load_artifact(tmp_path / "a", target="cpu", cuda_graphs=CudaGraphOptions(rows=(8,)))
        manifest = load_artifact(tmp_path / "a", target="cpu").manifest
        with pytest.raises(TargetError, match="for target 'cuda:0,cuda:1', expected a target of one CUDA"):
            Capture.on_target(manifest.targets[1], manifest.signature, CudaGraphOptions(rows=(8,)))

    def test_sequences_and_rows_that_belong_together(self, tmp_path: Path) -> None:
        options = CudaGraphOptions(rows=(8,))
        exported(CASES["sequences"].make(), tmp_path / "a", targets=(("cpu",), ("cuda:0",)))
        manifest = load_artifact(tmp_path / "a", target="cpu").manifest
        with pytest.raises(TargetError, match="expected pooled lookups alone"):
            Capture.on_target(manifest.targets[1], manifest.signature, options)
        together = replace(manifest.signature, by_request=True)
        with pytest.raises(TargetError, match="expected rows that do not depend on each other"):
            Capture.on_target(manifest.targets[1], together, options)

    def test_graphs_without_the_methods(self, tmp_path: Path) -> None:
        # As artifacts of earlier releases are.
        _, artifact = exported(CASES["dlrm"].make(), tmp_path / "a")
        capture = Capture(
            options=CudaGraphOptions(rows=(8,)),
            signature=artifact.signature,
            device=torch.device("cpu"),
            recorder=lambda _: HostRecorder(),
        )
        with pytest.raises(TargetError, match="export it again with this release"):
            LoadedGraphs(artifact.graphs._modules, artifact.target, capture=capture)  # type: ignore[union-attr]


def test_what_no_bucket_takes_is_called(ranker: StandIn) -> None:
    frozen = ranker.graphs.frozen[0]
    signature = ranker.on_cpu.signature
    module = SimpleNamespace(
        forward=ranker.on_cpu.module.forward, to_send=frozen.to_send, on_device=frozen.on_device
    )
    recorder = HostRecorder()
    capture = Capture(
        options=CudaGraphOptions(rows=(8, 2, 8)),
        signature=signature,
        device=torch.device("cpu"),
        recorder=lambda _: recorder,
    )
    forward = BucketedForward(module, capture)
    assert recorder.num_records == 2
    for num_rows in (1, 8, 9, 100):
        batch = batch_of(signature, num_rows, seed=num_rows)
        with torch.inference_mode():
            assert_close(forward(*batch.inputs()), ranker.on_cpu.forward(*batch.inputs()))
    assert recorder.num_replays == 2


def test_the_float_model_agrees(tmp_path: Path) -> None:
    """The stand-in is not compared with itself alone."""
    model = CASES["dlrm"].make()
    case = stand_in(tmp_path / "a", ModelCase(make=lambda: model, sparse=CASES["dlrm"].sparse), ROWS)
    batch = batch_of(case.on_cpu.signature, 6)
    found = case.replayed(*batch.inputs())
    assert found is not None
    with torch.no_grad():
        expected = model(**arguments(case.on_cpu.signature, batch, CASES["dlrm"].sparse))
    torch.testing.assert_close(found["default"], expected.reshape(found["default"].shape), rtol=0, atol=0.02)
