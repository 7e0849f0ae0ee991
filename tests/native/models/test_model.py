"""The native runtime library predicts what the Python one does, bit for bit, and says the same of what is damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.config import ExportConfig
from export.delta.compact import compact
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ComputedIdError, RowsMemoryError
from recsys.inputs.signature import Signature
from recsys.rows.memory import RowsMemory, RowsPages
from serve.config.models import BatchLimits
from serve.engine.interface import ModelInfo
from serve.engine.reference.executor import check_outputs, collate
from serve.engine.reference.raw_request import RawRequestLike
from serve.engine.reference.request_check import RequestChecker
from serve.errors import RequestError
from tests.conformance.support.artifacts import (
    Exported,
    export_best,
    export_crossing,
    export_in_batch,
    export_list,
    export_policies,
    export_small,
)
from tests.native.tool import NativeError, NativeModel, as_json, assert_same_error, needs_tool
from tests.recsys.artifact.conftest import artifact, delta, loaded, pristine, pristine_file, single
from tests.recsys.artifact.delta.deltas import CHANGES, write_delta
from tests.serve.engine.reference.test_ranking_check import split
from tests.support.children.limits import without_memory_locking
from tests.support.helpers import bag
from tests.support.models.export_models import Folded
from tests.support.serve.messages.cases import Sample, assert_answers, random_sample
from tests.support.serve.messages.texts import text_request, with_texts

pytestmark = needs_tool
__all__ = ["artifact", "delta", "loaded", "pristine", "pristine_file", "single"]  # fixtures


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_small(tmp_path_factory.mktemp("native") / "small")


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_policies(tmp_path_factory.mktemp("native") / "policies")


def python_answer(model: LoadedArtifact, requests: Sequence[RawRequestLike]) -> list[bytes]:
    """What the Python server computes of the requests as one batch."""
    checker = RequestChecker(model.signature, BatchLimits())
    checked = [checker.check(request) for request in requests]
    forward = model.forward if checked[0].context is None else model.forward_ranking
    outputs = forward(*collate(checked))
    return check_outputs(outputs, model.signature, sum(request.num_rows for request in requests))


def assert_same(native: NativeModel, model: LoadedArtifact, requests: Sequence[RawRequestLike]) -> None:
    found = native.predict(model.signature, requests)
    assert [values.tobytes() for values in found.values()] == python_answer(model, requests)


def batches(signature: Signature, seed: int, num: int = 25) -> Iterator[list[RawRequestLike]]:
    """Random requests, from none of the rows to some, one to five a batch."""
    rng = np.random.default_rng(seed)
    for i in range(num):
        rows = [0] if i == 0 else [1] if i == 1 else rng.integers(0, 9, rng.integers(1, 6)).tolist()
        yield [random_sample(signature, num_rows, rng).request() for num_rows in rows]


def ranking_batches(
    signature: Signature, shared: set[str], seed: int, num: int = 15
) -> Iterator[list[RawRequestLike]]:
    """Random requests that give some inputs once."""
    rng = np.random.default_rng(seed)
    for _ in range(num):
        rows = rng.integers(0, 9, rng.integers(1, 6)).tolist()
        yield [
            split(random_sample(signature, n, rng), random_sample(signature, 1, rng), shared)[0] for n in rows
        ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"verify_checksums": False},
        {"copy_rows": True},
        {"lock_rows": True},
        {"random_access": True},
        {"copy_rows": True, "lock_rows": True, "numa": "interleave"},
        {"copy_rows": True, "numa": "local"},
    ],
    ids=str,
)
@pytest.mark.parametrize("target", ["cpu", "cpu,cpu"])
def test_batches_get_the_same_bits(
    native: NativeModel, small: Exported, target: str, options: dict[str, Any]
) -> None:
    model = load_artifact(small.path, target=target)
    assert native.open(small.path, target=target, **options)["target"] == target
    for requests in batches(model.signature, 1):
        assert_same(native, model, requests)


@pytest.mark.parametrize("target", ["cpu", "cpu,cpu"])
@pytest.mark.parametrize(
    "shared", [{"context", "user", "tags"}, {"context", "price", "user", "tags", "item"}], ids=len
)
def test_ranking_batches_get_the_same_bits(
    native: NativeModel, small: Exported, target: str, shared: set[str]
) -> None:
    model = load_artifact(small.path, target=target)
    native.open(small.path, target=target)
    for requests in ranking_batches(model.signature, shared, 2):
        assert_same(native, model, requests)


@pytest.mark.parametrize("shared", [{"user"}, {"price", "genres"}], ids=["user", "price and genres"])
def test_inputs_that_are_given_once_and_are_no_context_get_the_same_bits(
    native: NativeModel, small: Exported, shared: set[str]
) -> None:
    native.open(small.path)
    for requests in ranking_batches(small.signature, shared, 3):
        assert_same(native, small.model, requests)


def test_every_id_policy_gets_the_same_bits(native: NativeModel, policies: Exported) -> None:
    native.open(policies.path)
    for requests in batches(policies.signature, 4):
        assert_same(native, policies.model, requests)


def test_a_single_file_gets_the_same_bits(native: NativeModel, single: Path) -> None:
    model = load_artifact(single)
    native.open(single)
    for requests in batches(model.signature, 5):
        assert_same(native, model, requests)


def test_a_request_on_its_own_gets_the_same_bits(native: NativeModel, small: Exported) -> None:
    native.open(small.path)
    rng = np.random.default_rng(6)
    for num_rows in (0, 1, 5):
        request = random_sample(small.signature, num_rows, rng).request()
        found = native.predict_one(small.signature, request)
        assert [values.tobytes() for values in found.values()] == python_answer(small.model, [request])


def test_texts_get_the_same_bits(native: NativeModel, small: Exported) -> None:
    native.open(small.path)
    rng = np.random.default_rng(14)
    made = [with_texts(small.signature, random_sample(small.signature, n, rng), rng) for n in (1, 4, 0)]
    requests = [text_request(sample, texts) for sample, texts in made]
    assert_same(native, small.model, requests)
    assert_same(native, small.model, [requests[1], made[0][0].request()])
    found = native.predict_one(small.signature, requests[1])
    assert [values.tobytes() for values in found.values()] == python_answer(
        small.model, [made[1][0].request()]
    )


@pytest.mark.parametrize("shared", [set(), {"context", "user", "tags"}], ids=len)
def test_threads_predict_at_once(native: NativeModel, small: Exported, shared: set[str]) -> None:
    native.open(small.path)
    rng = np.random.default_rng(13)
    samples = [
        (random_sample(small.signature, n, rng), random_sample(small.signature, 1, rng)) for n in (3, 5)
    ]
    requests = [split(rows, one, shared)[0] if shared else rows.request() for rows, one in samples]
    found = native.call("predict_in_threads", requests=[as_json(request) for request in requests])
    assert found["num_different"] == 0
    assert [bytes.fromhex(v) for v in found["outputs"].values()] == python_answer(small.model, requests)


@pytest.mark.parametrize("kind", ["small", "policies", "artifact", "single"])
def test_a_model_describes_itself_alike(
    native: NativeModel, kind: str, request: pytest.FixtureRequest
) -> None:
    found = request.getfixturevalue(kind)
    path = found.path if isinstance(found, Exported) else found
    model = load_artifact(path)
    info = ModelInfo.of_manifest(model.manifest)
    expected = {
        "name": info.name,
        "digest": info.digest,
        "target": model.target_name,
        "torch_version": info.torch_version,
        "fbgemm_version": info.fbgemm_version,
        "table_bytes": dict(sorted(info.table_bytes.items())),
    }
    assert native.open(path) == {**expected, "rows_pages": asdict(model.rows.pages())}
    nowhere = asdict(RowsPages())
    assert native.call("describe", path=str(path)) == {**expected, "target": "", "rows_pages": nowhere}
    native.call("check", path=str(path))


def test_parts_are_looked_at_without_loading_them(native: NativeModel, artifact: Path) -> None:
    native.call("check", path=str(artifact))
    (artifact / "target-1.pt").unlink()
    with pytest.raises(NativeError, match=r"part 'target-1\.pt': missing"):
        native.call("check", path=str(artifact))


def test_rows_that_are_written_to_in_place_are_noticed(native: NativeModel, artifact: Path) -> None:
    model = load_artifact(artifact)
    native.open(artifact)
    requests = next(batches(model.signature, 7))
    assert_same(native, model, requests)
    rows = artifact / "rows.bin"
    os.utime(rows)
    assert_same(native, model, requests)
    rows.write_bytes(bytes([rows.read_bytes()[0] ^ 255]) + rows.read_bytes()[1:])
    assert_same_error(
        lambda: native.predict(model.signature, requests), lambda: python_answer(model, requests)
    )


def test_copied_rows_are_out_of_reach(native: NativeModel, artifact: Path) -> None:
    model = load_artifact(artifact, memory=RowsMemory(copy_rows=True))
    native.open(artifact, copy_rows=True)
    os.truncate(artifact / "rows.bin", 0)
    for requests in batches(model.signature, 8, 3):
        assert_same(native, model, requests)


@pytest.mark.parametrize("target", ["cpu", "cpu,cpu"])
@pytest.mark.parametrize("copy_rows", [False, True], ids=["mapped", "copied"])
def test_locked_rows_are_reported(native: NativeModel, artifact: Path, target: str, copy_rows: bool) -> None:
    options = {"copy_rows": copy_rows, "lock_rows": True}
    model = load_artifact(artifact, target=target, memory=RowsMemory(**options))
    pages = native.open(artifact, target=target, **options)["rows_pages"]
    assert pages["locked_bytes"] == model.manifest.layout.num_bytes
    assert pages == asdict(model.rows.pages())


@pytest.mark.parametrize(
    "options", [{"numa": "local"}, {"numa": "all", "copy_rows": True}], ids=["mapped", "unknown"]
)
def test_wrong_options_of_the_rows_memory_are_refused(
    native: NativeModel, artifact: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(NativeError) as caught:
        native.open(artifact, **options)
    with pytest.raises(ValueError, match="numa: ") as expected:
        RowsMemory(**options)
    assert (caught.value.kind, str(caught.value)) == ("ValueError", str(expected.value))


def test_rows_of_a_single_file_can_be_locked_but_not_placed(native: NativeModel, single: Path) -> None:
    model = load_artifact(single, memory=RowsMemory(lock_rows=True))
    pages = native.open(single, lock_rows=True)["rows_pages"]
    assert pages["locked_bytes"] == model.rows.pages().locked_bytes == model.manifest.layout.num_bytes
    placed = {"copy_rows": True, "numa": "local"}
    assert_same_error(
        lambda: native.open(single, **placed), lambda: load_artifact(single, memory=RowsMemory(**placed))
    )


def test_a_limit_of_locked_memory_is_named(artifact: Path) -> None:
    native = NativeModel(prefix=without_memory_locking(0))
    with pytest.raises(
        NativeError, match=r"lock_rows: got a limit of 0 bytes .*; raise it \(ulimit -l"
    ) as caught:
        native.open(artifact, lock_rows=True)
    assert caught.value.kind is RowsMemoryError
    assert native.close() == 0


def test_a_model_does_not_need_its_files_any_more(native: NativeModel, artifact: Path) -> None:
    model = load_artifact(artifact)
    native.open(artifact)
    shutil.rmtree(artifact)
    for requests in batches(model.signature, 9, 3):
        assert_same(native, model, requests)


@pytest.mark.parametrize("target", ["cpu", "cpu,cpu"])
@pytest.mark.parametrize("copy_rows", [False, True], ids=["mapped", "copied"])
def test_deltas_change_the_same_rows(
    native: NativeModel, artifact: Path, tmp_path: Path, target: str, copy_rows: bool
) -> None:
    model = load_artifact(artifact, target=target)
    native.open(artifact, target=target, copy_rows=copy_rows)
    for number in range(3):
        path = tmp_path / f"{number}.delta"
        write_delta(path, model.rows, CHANGES, seed=number, num_dense_left=number, with_dense=number != 1)
        apply(prepare(model.rows, path))
        assert native.call("prepare", path=str(path)) == {"num_dense_left": number}
        assert native.call("apply") == {"rows_state": model.rows.state}
        for requests in batches(model.signature, 10 + number, 10):
            assert_same(native, model, requests)


def test_a_compacted_chain_is_taken_from_its_start_and_from_its_middle(
    native: NativeModel, artifact: Path, tmp_path: Path
) -> None:
    model = load_artifact(artifact)
    paths = [tmp_path / f"{number}.delta" for number in range(3)]
    for number, path in enumerate(paths):
        write_delta(path, model.rows, CHANGES, seed=number, with_dense=number == 1)
        apply(prepare(model.rows, path))
    compact(paths, tmp_path / "c.delta")
    for first in ([], paths[:1], paths[:2]):
        native.open(artifact)
        for path in (*first, tmp_path / "c.delta"):
            native.call("prepare", path=str(path))
            state = native.call("apply")
        assert state == {"rows_state": model.rows.state}
        for requests in batches(model.signature, 12, 5):
            assert_same(native, model, requests)
    with pytest.raises(NativeError, match=r"delta\.base"):
        native.call("prepare", path=str(tmp_path / "c.delta"))


def test_deltas_change_blocks_of_columns(native: NativeModel, small: Exported, tmp_path: Path) -> None:
    model = load_artifact(small.path, target="cpu,cpu")
    native.open(small.path, target="cpu,cpu")
    write_delta(
        tmp_path / "a.delta", model.rows, {"plain.users": [0, 3, 49], "plain.catalog": [10]}, with_dense=True
    )
    apply(prepare(model.rows, tmp_path / "a.delta"))
    native.call("prepare", path=str(tmp_path / "a.delta"))
    native.call("apply")
    for requests in batches(model.signature, 11, 10):
        assert_same(native, model, requests)
    for requests in ranking_batches(model.signature, {"context", "user", "tags"}, 11, 10):
        assert_same(native, model, requests)


def test_a_delta_is_applied_once(native: NativeModel, pristine: Path, delta: Path) -> None:
    native.open(pristine)
    native.call("prepare", path=str(delta))
    state = native.call("apply")
    with pytest.raises(NativeError, match=r"delta\.base: got .* in the order in which they were made"):
        native.call("apply")
    with pytest.raises(NativeError, match=r"delta\.base"):
        native.call("prepare", path=str(delta))
    assert native.call("state") == state


def test_a_missing_library_is_named(artifact: Path, tmp_path: Path) -> None:
    model = NativeModel(RECSYS_FBGEMM_PATH=str(tmp_path))
    with pytest.raises(
        NativeError, match=r"library 'asmjit\.so': missing .*set RECSYS_FBGEMM_PATH"
    ) as caught:
        model.open(artifact)
    assert str(tmp_path) not in str(caught.value)
    assert model.close() == 0


def test_models_leave_no_memory_behind(small: Exported) -> None:
    model = NativeModel()
    requests = next(batches(small.signature, 12))
    resident = []
    for _ in range(30):
        model.open(small.path)
        model.predict(small.signature, requests)
        model.call("close")
        resident.append(model.resident_kib())
    assert resident[-1] - resident[9] < 2048
    assert model.close() == 0


def test_rows_of_a_single_file_go_back_with_the_model(tmp_path: Path) -> None:
    num_rows = 400_000

    class Large(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = EmbeddingBagCollection([bag("ids", num_rows, 64, ["id"])])

        def forward(self, features: KeyedJaggedTensor) -> dict[str, torch.Tensor]:
            return {"score": self.rows(features).values().sum(dim=1)}

    path = tmp_path / "large.pt"
    export_model(Large().eval(), path, ExportConfig(name="large", single_file=True))
    large_kib = path.stat().st_size // 1024
    model = NativeModel()
    model.open(path)
    assert model.resident_kib() > large_kib
    model.call("close")
    first = model.resident_kib()
    model.open(path)
    model.call("close")
    assert model.resident_kib() - first < large_kib // 4
    assert model.close() == 0


def test_a_batch_without_rows_reaches_no_graph(native: NativeModel, tmp_path: Path) -> None:
    """The graph would fail: what ``reshape(0, -1)`` is, nobody can tell."""
    path = tmp_path / "folded"
    export_model(Folded(), path, ExportConfig(context=("f",)))
    model = load_artifact(path)
    native.open(path)
    rng = np.random.default_rng(17)
    empty, context = (random_sample(model.signature, n, rng) for n in (0, 1))
    for requests in ([empty.request()] * 2, [split(empty, context, {"f"})[0]] * 2):
        found = native.predict(model.signature, requests)
        assert {name: values.shape for name, values in found.items()} == {
            "flat": (0, 16),
            "largest": (0, 2),
        }


def test_integers_and_other_shapes_are_the_same(native: NativeModel, tmp_path: Path) -> None:
    best, in_batch = export_best(tmp_path / "best"), export_in_batch(tmp_path / "in_batch")
    for made in (best, in_batch):
        assert native.open(made.path)["digest"] == made.model.digest
        for num_rows in (1, 2, 65):
            sample = made.sample(num_rows, seed=num_rows)
            assert_answers(native.predict_one(made.signature, sample.request()), made.answer(sample))
    with pytest.raises(NativeError, match="num_rows: got 0, expected 1 or more: output 'candidates'"):
        native.predict_one(in_batch.signature, in_batch.sample(0).request())
    native.open(best.path)
    samples = [best.sample(n, seed=n) for n in (2, 0, 3)]
    answers = [best.answer(sample) for sample in samples]
    together = {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
    assert_answers(native.predict(best.signature, [sample.request() for sample in samples]), together)
    empty = native.predict_one(best.signature, best.sample(0).request())
    assert {name: (a.shape, a.dtype) for name, a in empty.items()} == {
        "ids": ((0, 4), np.int64),
        "scores": ((0, 4), np.float32),
        "good": ((0,), np.int64),
    }


def test_a_batch_that_is_one_request_takes_no_other(native: NativeModel, tmp_path: Path) -> None:
    lists = export_list(tmp_path / "lists")
    native.open(lists.path)
    rng = np.random.default_rng(18)
    requests = [random_sample(lists.signature, n, rng).request() for n in (3, 1, 0)]
    for request in requests:
        assert_same(native, lists.model, [request])
    with pytest.raises(
        NativeError, match=r"batch: got 2 requests, expected one: .* --batch request"
    ) as caught:
        native.predict(lists.signature, requests[:2])
    assert caught.value.kind is RequestError


@pytest.mark.parametrize("target", ["cpu", "cpu,cpu"])
def test_a_computed_id_that_leaves_its_table_is_named(
    native: NativeModel, tmp_path: Path, target: str
) -> None:
    crossing = export_crossing(tmp_path / "crossing")
    native.open(crossing.path, target=target)
    good, bad = (Sample(1, {}, {"id": [[i]]}, {}).request() for i in (49, 50))
    assert_same(native, load_artifact(crossing.path, target=target), [good])
    told = "computed ID: table 'made.twice' got 100, expected 0 <= ID < 100"
    for _ in range(3):
        with pytest.raises(ComputedIdError) as of_python:
            python_answer(crossing.model, [good, bad])
        with pytest.raises(NativeError) as of_native:
            native.predict(crossing.signature, [good, bad])
        assert str(of_python.value) == str(of_native.value) == told
        assert of_native.value.kind is RequestError
