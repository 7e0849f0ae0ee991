"""The native runtime library predicts what the Python one does, bit for bit, and says the same of what is damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.delta import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ArtifactError
from recsys.signature import Signature
from serve.config.models import BatchLimits
from serve.engine.interface import ModelInfo
from serve.engine.reference.collate import check_outputs, collate
from serve.engine.reference.request_check import RequestChecker
from serve.engine.reference.requests import RawRequestLike
from tests.conformance.support.artifacts import Exported, export_policies, export_small
from tests.native.tool import NativeError, NativeModel, as_json, needs_tool
from tests.recsys.artifact.conftest import artifact, delta, loaded, pristine, pristine_file, single
from tests.recsys.artifact.damage import flip, lie, manifest_of, write_manifest
from tests.recsys.artifact.deltas import CHANGES, GOODS, USERS, write_delta
from tests.recsys.artifact.test_damage import DAMAGES, FOREIGN
from tests.recsys.artifact.test_delta_damage import DAMAGE
from tests.recsys.artifact.test_fuzz import VALUES, _mutated, _paths
from tests.serve.engine.reference.test_ranking_check import split
from tests.support.helpers import bag
from tests.support.serve.messages.cases import random_sample
from tests.support.serve.messages.texts import text_request, with_texts

pytestmark = needs_tool
__all__ = ["artifact", "delta", "loaded", "pristine", "pristine_file", "single"]  # fixtures


@pytest.fixture(scope="module")
def native() -> Iterator[NativeModel]:
    """The program; the model that it holds is the last one that was opened."""
    model = NativeModel()
    yield model
    assert model.close() == 0


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


@pytest.mark.parametrize("options", [{}, {"copy_rows": True}, {"verify_checksums": False}], ids=str)
@pytest.mark.parametrize("target", ["cpu", "cpu,cpu"])
def test_batches_get_the_same_bits(
    native: NativeModel, small: Exported, target: str, options: dict[str, bool]
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
    assert native.open(path) == expected
    assert native.call("describe", path=str(path)) == {**expected, "target": ""}
    native.call("check", path=str(path))


def python_error(call: Callable[[], object]) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as caught:
        call()
    return caught.type, str(caught.value)


def assert_same_error(
    native: Callable[[], object], python: Callable[[], object], *, whole: bool = True
) -> None:
    kind, text = python_error(python)
    with pytest.raises(NativeError) as caught:
        native()
    assert caught.value.kind is kind
    if whole and "not readable as JSON" not in text:
        assert str(caught.value) == text


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("verify", [True, False], ids=["checksums", "no checksums"])
def test_each_damage_is_the_same_error(native: NativeModel, artifact: Path, name: str, verify: bool) -> None:
    DAMAGES[name][0](artifact)
    assert_same_error(
        lambda: native.open(artifact, verify_checksums=verify),
        lambda: load_artifact(artifact, verify_checksums=verify),
    )


@pytest.mark.parametrize("name", FOREIGN)
def test_each_foreign_file_is_the_same_error(native: NativeModel, tmp_path: Path, name: str) -> None:
    FOREIGN[name](tmp_path / "x.pt")
    assert_same_error(lambda: native.open(tmp_path / "x.pt"), lambda: load_artifact(tmp_path / "x.pt"))


@pytest.mark.parametrize("table", [USERS, GOODS])
def test_a_flipped_byte_of_the_rows_is_the_same_error(
    native: NativeModel, artifact: Path, table: str
) -> None:
    block = next(b for b in load_artifact(artifact).manifest.layout.blocks if b.table == table)
    flip(artifact / "rows.bin", block.offset_bytes + 3)
    assert_same_error(lambda: native.open(artifact), lambda: load_artifact(artifact))
    native.open(artifact, verify_checksums=False)


@pytest.mark.parametrize("part", ["0.5", "0.9", "-10", "rows"])
def test_a_damaged_single_file_is_the_same_error(native: NativeModel, single: Path, part: str) -> None:
    size = single.stat().st_size
    at = size // 3 if part == "rows" else int(part) if part.startswith("-") else int(size * float(part))
    flip(single, at)
    try:
        load_artifact(single)
    except ValueError:
        assert_same_error(lambda: native.open(single), lambda: load_artifact(single), whole=False)
    else:
        native.open(single)


def _set(path: list[Any], value: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = value

    return change


LIES: dict[str, Callable[[Any], None]] = {
    "no tables": _set(["tables"], []),
    "tables a text": _set(["tables"], "x"),
    "a name twice": lambda m: m["tables"].append(m["tables"][0]),
    "an unknown type": _set(["tables", 0, "data_type"], "INT3"),
    "a float for rows": _set(["tables", 0, "num_embeddings"], 50.0),
    "true for rows": _set(["tables", 0, "num_embeddings"], True),
    "rows of exabytes": _set(["tables", 0, "num_embeddings"], 2**62),
    "dim of exabytes": _set(["tables", 0, "embedding_dim"], 2**62),
    "sqnr a text": _set(["tables", 0, "sqnr_db"], "x"),
    "a list for sqnr": _set(["tables", 0, "sqnr_db"], [1, {"a": None, "b": True}]),
    "blocks overlap": _set(["rows", "blocks", 1, "offset_bytes"], 0),
    "a block off its place": _set(["rows", "blocks", 1, "offset_bytes"], 4097),
    "columns missing": _set(["rows", "blocks", 0, "columns"], [0, 8]),
    "columns descend": _set(["rows", "blocks", 0, "columns"], [8, 0]),
    "columns texts": _set(["rows", "blocks", 0, "columns"], ["0", "8"]),
    "a block of no table": _set(["rows", "blocks", 0, "table"], "it's"),
    "digest no digest": _set(["rows", "blocks", 0, "sha256"], "x" * 64),
    "size of rows": _set(["rows", "size_bytes"], 1),
    "rows nowhere": _set(["rows", "path"], None),
    "rows elsewhere": _set(["rows", "path"], "../rows.bin"),
    "a long name": _set(["rows", "path"], "ü" * 200),
    "no targets": _set(["targets"], []),
    "a target twice": lambda m: m["targets"].append(m["targets"][0]),
    "a target by another name": _set(["targets", 0, "name"], "cpu,cuda:0"),
    "an unknown device": _set(["targets", 0, "devices"], ["tpu"]),
    "a device that is no text": _set(["targets", 0, "devices"], [None]),
    "meta": _set(["targets", 0, "devices"], ["meta"]),
    "no device": _set(["targets", 0, "devices"], []),
    "plan a list": _set(["targets", 0, "plan"], []),
    "plan of none": _set(["targets", 0, "plan"], {}),
    "plan of texts": _set(["targets", 0, "plan"], {"a": "b"}),
    "an unknown skeleton": _set(["targets", 0, "skeleton"], "x.pt"),
    "rows' rank": lambda m: m["targets"][0]["rows"].update(dict.fromkeys(m["targets"][0]["rows"], 7)),
    "rows' other buffers": _set(["targets", 0, "rows"], {"x.y": 0}),
    "no ranking": _set(["targets", 0, "ranking"], {"skeleton": "target-0.pt", "rows": {}, "ranks": {}}),
    "dense dtype": _set(["targets", 0, "dense_dtype"], "float64"),
    "no inputs": lambda m: m["signature"].update(dense=[], sparse=[]),
    "no outputs": _set(["signature", "outputs"], []),
    "a shape of zero": _set(["signature", "outputs", 0, "shape"], [0]),
    "an input twice": lambda m: m["signature"]["dense"].append(m["signature"]["dense"][0]),
    "an unknown hash": _set(["signature", "sparse", 0, "strings"], "md5"),
    "an empty hash": _set(["signature", "sparse", 0, "strings"], ""),
    "a number for a hash": _set(["signature", "sparse", 0, "strings"], 64),
    "an unknown policy": _set(["signature", "sparse", 0, "tables", 0, "id_policy"], "x"),
    "another policy": _set(["signature", "sparse", 0, "tables", 0, "id_policy"], "zero"),
    "an unknown table": _set(["signature", "sparse", 0, "tables", 0, "name"], "x"),
    "another number of rows": _set(["signature", "sparse", 0, "tables", 0, "num_embeddings"], 7),
    "an unknown context": _set(["signature", "context"], ["x"]),
    "a context": _set(["signature", "context"], ["context"]),
    "no name": _set(["name"], ""),
    "versions a list": _set(["versions"], []),
    "no verification": lambda m: m.pop("verification"),
    "a skeleton's size": _set(["skeletons", 0, "size_bytes"], -1),
}


@pytest.mark.parametrize("name", LIES)
def test_each_lie_of_a_manifest_is_the_same_error(native: NativeModel, artifact: Path, name: str) -> None:
    lie(artifact, LIES[name])
    assert_same_error(lambda: native.open(artifact), lambda: load_artifact(artifact))


@pytest.mark.parametrize("target", ["tpu", "cuda:0,cuda:1"])
def test_a_target_that_is_not_to_be_had_is_the_same_error(
    native: NativeModel, artifact: Path, target: str
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has what other machines lack")
    assert_same_error(
        lambda: native.open(artifact, target=target), lambda: load_artifact(artifact, target=target)
    )
    with pytest.raises(NativeError, match="target"):
        native.call("check", path=str(artifact), target=target)


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
    os.utime(artifact / "rows.bin")
    assert_same_error(
        lambda: native.predict(model.signature, requests), lambda: python_answer(model, requests)
    )


def test_copied_rows_are_out_of_reach(native: NativeModel, artifact: Path) -> None:
    model = load_artifact(artifact, copy_rows=True)
    native.open(artifact, copy_rows=True)
    os.truncate(artifact / "rows.bin", 0)
    for requests in batches(model.signature, 8, 3):
        assert_same(native, model, requests)


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


@pytest.mark.parametrize("name", DAMAGE)
def test_each_damage_of_a_delta_is_the_same_error(
    native: NativeModel, pristine: Path, loaded: LoadedArtifact, delta: Path, name: str
) -> None:
    native.open(pristine, target="cpu")
    DAMAGE[name][0](delta)
    assert_same_error(lambda: native.call("prepare", path=str(delta)), lambda: prepare(loaded.rows, delta))
    assert native.call("state") == {"rows_state": loaded.rows.state}


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


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 10_000),
    kind=st.sampled_from(["replace", "replace", "delete", "twice", "nudge"]),
    value=VALUES,
)
def test_a_manifest_with_anything_in_any_place_is_the_same_error(
    native: NativeModel, pristine: Path, tmp_path: Path, at: int, kind: str, value: Any
) -> None:
    path = tmp_path / "ranker"
    if not path.exists():
        shutil.copytree(pristine, path)
    shutil.copy(pristine / "manifest.json", path)
    places = _paths(manifest_of(path))
    with suppress(TypeError):
        write_manifest(path, _mutated(manifest_of(path), places[at % len(places)], kind, value))
    try:
        load_artifact(path)
    except ArtifactError as error:
        expected: tuple[type, str] | None = (type(error), str(error))
    else:
        expected = None
    found: tuple[type, str] | None = None
    try:
        native.open(path)
    except NativeError as error:
        if "not readable as JSON" in str(error):
            return  # Numbers and texts that JSON does not know, and Python does.
        found = (error.kind, str(error))
    assert found == expected
