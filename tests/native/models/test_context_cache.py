"""Contexts whose values are kept, in the native runtime library: the same bits, and nothing of rows that have changed.

The reference is the same artifact in Python, and in a second native process, both without a cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.inputs.signature import Signature
from serve.engine.reference.raw_request import RawRequestLike
from tests.conformance.support.artifacts import CONTEXT, Exported, export_small
from tests.native.models.test_model import assert_same, python_answer, ranking_batches
from tests.native.program_models import MODELS, loaded
from tests.native.tool import NativeModel, as_json, needs_tool
from tests.recsys.artifact.delta.deltas import write_delta
from tests.serve.engine.reference.test_ranking_check import split
from tests.support.helpers import bag
from tests.support.serve.messages.cases import Sample, random_sample

pytestmark = needs_tool
LARGE = 1 << 24


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_small(tmp_path_factory.mktemp("contexts") / "small")


def requests_of(
    signature: Signature, contexts: Sequence[Sample], shared: Sequence[str], seed: int, rows: Sequence[int]
) -> list[RawRequestLike]:
    """Requests of so many rows each, each with one of the contexts."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(contexts), len(rows))
    return [
        split(random_sample(signature, n, rng), contexts[i], set(shared))[0]
        for n, i in zip(rows, drawn, strict=True)
    ]


def contexts_of(signature: Signature, num: int, max_ids: int = 4) -> list[Sample]:
    rng = np.random.default_rng(num)
    return [random_sample(signature, 1, rng, max_ids) for _ in range(num)]


def pooled_batches(
    signature: Signature, contexts: Sequence[Sample], shared: Sequence[str], num: int
) -> Iterator[list[RawRequestLike]]:
    """Batches of one to six requests whose contexts come again and again."""
    rng = np.random.default_rng(num)
    for seed in range(num):
        rows = rng.integers(0, 9, rng.integers(1, 7)).tolist()
        yield requests_of(signature, contexts, shared, seed, [*rows, 1])


def test_contexts_that_come_again_get_the_same_bits(native: NativeModel, small: Exported) -> None:
    native.open(small.path, context_cache_bytes=LARGE)
    assert native.call("context_cache") == dict.fromkeys(
        ("hits", "misses", "evictions", "entries", "bytes"), 0
    )
    contexts = contexts_of(small.signature, 20)
    for requests in pooled_batches(small.signature, contexts, CONTEXT, 60):
        assert_same(native, small.model, requests)
    counts = native.call("context_cache")
    assert counts["misses"] == counts["entries"] == 20
    assert counts["hits"] > 60
    assert counts["evictions"] == 0
    for requests in ranking_batches(small.signature, set(CONTEXT), 2):
        assert_same(native, small.model, requests)


def test_equal_contexts_of_a_batch_are_one(native: NativeModel, small: Exported) -> None:
    native.open(small.path, context_cache_bytes=LARGE)
    one, other = contexts_of(small.signature, 2)
    rng = np.random.default_rng(3)
    requests = [
        split(random_sample(small.signature, n, rng), context, set(CONTEXT))[0]
        for n, context in ((2, one), (1, other), (0, one), (4, other), (3, one))
    ]
    for _ in range(2):
        assert_same(native, small.model, requests)
    counts = native.call("context_cache")
    assert (counts["misses"], counts["hits"]) == (2, 2)


def test_a_storm_of_contexts_stays_within_the_bytes(native: NativeModel, small: Exported) -> None:
    most = 20_000
    native.open(small.path, context_cache_bytes=most)
    contexts = contexts_of(small.signature, 400, max_ids=9)
    for requests in pooled_batches(small.signature, contexts, CONTEXT, 80):
        assert_same(native, small.model, requests)
        counts = native.call("context_cache")
        assert counts["bytes"] <= most
    assert counts["evictions"] > 50
    assert counts["entries"] > 5
    assert counts["misses"] == counts["evictions"] + counts["entries"]


def test_contexts_without_ids_are_contexts(native: NativeModel, small: Exported) -> None:
    native.open(small.path, context_cache_bytes=LARGE)
    contexts = contexts_of(small.signature, 3, max_ids=0)
    for requests in pooled_batches(small.signature, contexts, CONTEXT, 6):
        assert_same(native, small.model, requests)
    assert native.call("context_cache")["misses"] == 3


def test_zeros_of_either_sign_are_different_contexts(native: NativeModel, small: Exported) -> None:
    native.open(small.path, context_cache_bytes=LARGE)
    rng = np.random.default_rng(5)
    rows, one = random_sample(small.signature, 2, rng), random_sample(small.signature, 1, rng)
    for zero in (0.0, -0.0, 0.0):
        one.dense["context"][0][1] = zero
        assert_same(native, small.model, [split(rows, one, set(CONTEXT))[0]])
    counts = native.call("context_cache")
    assert (counts["misses"], counts["hits"]) == (2, 1)


@pytest.mark.parametrize("kind", ["dlrm", "two_towers", "low_rank_dcn", "mmoe", "deepfm"])
def test_values_further_up_are_kept_too(native: NativeModel, tmp_path: Path, kind: str) -> None:
    """Layers of the context alone, where the model has some."""
    shared = ("f0", "f2")
    _, model = loaded(tmp_path / kind, MODELS[kind](), context=shared)
    native.open(tmp_path / kind, context_cache_bytes=LARGE)
    contexts = contexts_of(model.signature, 6)
    for requests in pooled_batches(model.signature, contexts, shared, 12):
        assert_same(native, model, requests)
    assert native.call("context_cache")["misses"] == 6


def apply_all(small: Exported, folder: Path) -> tuple[list[Path], list[str]]:
    """Deltas, each from the one before it, of rows of the context and of others, some with dense weights.

    Returns:
        The deltas, and the states of the rows before and behind each.
    """
    model = load_artifact(small.path)
    paths, states = [], [model.rows.state]
    changes = {"plain.users": list(range(50)), "weighted.tags": [1, 5, 19], "plain.catalog": [2]}
    for number in range(4):
        paths.append(folder / f"{number}.delta")
        write_delta(paths[-1], model.rows, changes, seed=number, with_dense=number % 2 == 1)
        apply(prepare(model.rows, paths[-1]))
        states.append(model.rows.state)
    return paths, states


def test_deltas_leave_nothing_of_the_rows_before(
    native: NativeModel, small: Exported, tmp_path: Path
) -> None:
    native.open(small.path, context_cache_bytes=LARGE)
    model = load_artifact(small.path)
    paths, _ = apply_all(small, tmp_path)
    contexts = contexts_of(small.signature, 8)
    for path in paths:
        for requests in pooled_batches(small.signature, contexts, CONTEXT, 8):
            assert_same(native, model, requests)
        assert native.call("context_cache")["entries"] == 8
        native.call("prepare", path=str(path))
        native.call("apply")
        counts = native.call("context_cache")
        assert (counts["entries"], counts["bytes"], counts["evictions"]) == (0, 0, 0)
        apply(prepare(model.rows, path))
    for requests in pooled_batches(small.signature, contexts, CONTEXT, 8):
        assert_same(native, model, requests)


def test_threads_never_see_rows_from_before_a_delta(
    native: NativeModel, small: Exported, tmp_path: Path
) -> None:
    paths, states = apply_all(small, tmp_path)
    contexts = contexts_of(small.signature, 8)
    batches = list(pooled_batches(small.signature, contexts, CONTEXT, 7))
    native.open(small.path, context_cache_bytes=4_000)
    found = native.call(
        "predict_while_applying",
        batches=[[as_json(request) for request in requests] for requests in batches],
        paths=[str(path) for path in paths],
    )
    assert found["num_different"] == 0
    assert set(found["answers"]) == set(states)
    model = load_artifact(small.path)
    for state, path in zip(states, [*paths, None], strict=True):
        for number, said in found["answers"][state].items():
            expected = python_answer(model, batches[int(number)])
            assert [bytes.fromhex(values) for values in said.values()] == expected
        if path is not None:
            apply(prepare(model.rows, path))
    assert native.call("context_cache")["hits"] > 0


class WithRegion(nn.Module):
    """Sorts what it looks up of the context, which no step does: a region computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = EmbeddingBagCollection([bag("users", 30, 8, ["user"]), bag("items", 30, 8, ["item"])])
        self.users = nn.Linear(8, 8)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        found = self.rows(features)
        user = torch.sort(self.users(found["user"]).relu(), dim=1).values
        return {"score": (user * found["item"]).sum(dim=1)}


def test_what_a_region_computes_is_computed_each_time(native: NativeModel, tmp_path: Path) -> None:
    torch.manual_seed(0)
    export_model(WithRegion().eval(), tmp_path / "region", ExportConfig(context=("user",)))
    model = load_artifact(tmp_path / "region")
    native.open(tmp_path / "region", context_cache_bytes=LARGE)
    contexts = contexts_of(model.signature, 5)
    for requests in pooled_batches(model.signature, contexts, ("user",), 20):
        assert_same(native, model, requests)
    assert native.call("context_cache")["misses"] == len({str(context) for context in contexts})


def test_torchscript_keeps_no_contexts(native: NativeModel, small: Exported) -> None:
    native.open(small.path, context_cache_bytes=LARGE, scripted=True)
    for requests in ranking_batches(small.signature, set(CONTEXT), 4, 3):
        native.predict(small.signature, requests)
    assert set(native.call("context_cache").values()) == {0}
