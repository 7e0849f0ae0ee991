"""Artifacts of user towers answer with the items that the pair scorer ranks first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from torch import Tensor

import export.verify.samples
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.checkpoint import build_model, load_checkpoint
from recsys.configs import DataType
from recsys.data.cli import main as data_main
from recsys.data.scoring import schema_for
from recsys.data.tables.dataset import rows_of
from recsys.errors import ExportError, VerificationError
from recsys.models.retrieval import RetrievalModel, UserTower, retrieval_model
from recsys.models.zoo import towers_of
from recsys.ops import is_traced
from recsys.train.commands.train import main as train_main
from tests.export.test_cli import run
from tests.recsys.data.blocks import all_of
from tests.support.click_tables import write_clicks
from tests.support.helpers import kjt_of
from tests.support.models.two_towers import (
    KINDS,
    NUM_ITEMS,
    all_scores,
    check_best,
    inputs_of,
    two_towers,
    users_of,
    vectors_of,
)

K = 10


def exported(path: Path, kind: str = "index", **options: Any) -> LoadedArtifact:
    model = two_towers(kind, dense=options.pop("dense", True))
    export_model(retrieval_model(model, vectors_of(model, kind), K), path, ExportConfig(**options))
    return load_artifact(path)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "no-dense"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_items_are_those_of_all_pairs(tmp_path: Path, kind: str, dense: bool) -> None:
    artifact = exported(tmp_path / "a", kind, dense=dense, data_type=DataType.FP32)
    users = users_of(kind, 40)
    found = artifact.forward(*inputs_of(artifact.signature, users))
    scores = all_scores(two_towers(kind, dense=dense), kind, users)
    check_best(found, scores, error=1e-5 * float(scores.std()))


def test_quantized_rows_move_items_by_no_more_than_their_scores(tmp_path: Path) -> None:
    artifact = exported(tmp_path / "a", data_type=DataType.INT8)
    users = users_of("index", 40)
    found = artifact.forward(*inputs_of(artifact.signature, users))
    scores = all_scores(two_towers(), "index", users)
    places = check_best(found, scores, error=0.02 * float(scores.std()))
    best = np.argsort(-scores, axis=1)[:, :K]
    shared = [
        len(set(mine) & set(theirs)) for mine, theirs in zip(places.tolist(), best.tolist(), strict=True)
    ]
    assert sum(shared) >= 0.95 * best.size


@pytest.mark.parametrize("kind", ["index", "zero_collision"])
def test_the_artifact_holds_the_users_part_alone(tmp_path: Path, kind: str) -> None:
    artifact = exported(tmp_path / "a", kind)
    manifest, signature = artifact.manifest, artifact.signature
    assert [use.name for use in signature.sparse] == ["user", "query"]
    assert [(dense.name, dense.width, dense.missing) for dense in signature.dense] == [
        ("dense_features", 2, True)
    ]
    assert [(output.name, output.shape) for output in signature.outputs] == [
        ("scores", (K,)),
        ("items", (K,)),
    ]
    assert [info.table.name.rsplit(".", 1)[-1] for info in manifest.tables] == ["users", "words"]
    assert manifest.schema is not None
    assert manifest.schema.feature_names == ("user", "query")


def test_weights_are_shared_with_the_model() -> None:
    model = two_towers("zero_collision")
    own = {tensor.data_ptr() for tensor in [*model.parameters(), *model.buffers()] if tensor.numel()}
    tower = UserTower(towers_of(model), model.transforms)
    assert {t.data_ptr() for t in [*tower.parameters(), *tower.buffers()] if t.numel()} <= own


def test_rows_do_not_depend_on_their_neighbours(tmp_path: Path) -> None:
    artifact = exported(tmp_path / "a")
    dense, bags = users_of("index", 7)
    whole = artifact.forward(*inputs_of(artifact.signature, (dense, bags)))
    for row in range(7):
        alone = (dense[row : row + 1], {name: of[row : row + 1] for name, of in bags.items()})
        found = artifact.forward(*inputs_of(artifact.signature, alone))
        assert torch.equal(found["items"][0], whole["items"][row])
        torch.testing.assert_close(found["scores"][0], whole["scores"][row], rtol=1e-5, atol=1e-6)
    nobody = (dense[:0], {name: [] for name in bags})
    assert [list(o.shape) for o in artifact.forward(*inputs_of(artifact.signature, nobody)).values()] == [
        [0, K],
        [0, K],
    ]


@pytest.mark.parametrize(
    "options",
    [{"targets": (("cpu", "cpu"),)}, {"targets": (("cuda:0",),)}, {"single_file": True}],
    ids=["two devices", "cuda", "single file"],
)
def test_other_targets_are_verified(tmp_path: Path, options: dict[str, Any]) -> None:
    model = two_towers("mixed")
    made = retrieval_model(model, vectors_of(model, "mixed"), K)
    report = export_model(made, tmp_path / "a", ExportConfig(data_type=DataType.FP32, **options))
    ((_, differences),) = report.differences.items()
    assert list(differences) == ["scores", "items"]
    assert all(difference.max_abs < 1e-5 for difference in differences.values())


Best = dict[str, Tensor]


class _Spoiled(RetrievalModel):
    """Right in Python; its graph makes the answer from the K + 1 best items by ``spoil``."""

    spoil: Callable[[Best], Best]

    def _best(self, users: Tensor) -> Best:
        best = super()._best(users)
        if is_traced(users):
            best = self.spoil(best)
        return {name: found[:, :K] for name, found in best.items()}


def _spoiled(vectors: Tensor, spoil: Callable[[Best], Best]) -> _Spoiled:
    made = retrieval_model(two_towers(), vectors, K + 1)
    model = _Spoiled(made.user_tower, made.vectors, K + 1, made.inputs)
    model.spoil = spoil
    return model


def _with_items(change: Callable[[Tensor], Tensor]) -> Callable[[Best], Best]:
    return lambda best: {**best, "items": change(best["items"])}


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (_with_items(lambda items: items.roll(1, 0)), "output 'items', row .* away from"),
        (_with_items(lambda items: NUM_ITEMS - 1 - items), "output 'items', row .* away from"),
        (_with_items(lambda items: items - 300), "expected whole numbers from 0 to 299"),
        (_with_items(lambda items: items * 0), "expected each item once"),
        (lambda best: {**best, "scores": best["scores"] + 0.25}, "output 'scores', row .* away from"),
        (lambda best: {name: found[:, 1:] for name, found in best.items()}, "output 'scores', row .* away"),
    ],
    ids=["other rows'", "mirrored", "negative", "one item", "scores", "best missing"],
)
def test_wrong_answers_are_no_artifact(tmp_path: Path, spoil: Callable[[Best], Best], text: str) -> None:
    vectors = vectors_of(two_towers(), "index")
    with pytest.raises(VerificationError, match=text):
        export_model(_spoiled(vectors, spoil), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_items_that_tie_may_change_places(tmp_path: Path) -> None:
    """Every item is there three times; the graph names another of the three than the model does."""
    vectors = vectors_of(two_towers(), "index").repeat(3, 1)
    model = _spoiled(vectors, _with_items(lambda items: torch.remainder(items + NUM_ITEMS, 3 * NUM_ITEMS)))
    report = export_model(model, tmp_path / "a", ExportConfig(data_type=DataType.FP32))
    assert report.differences["cpu"]["items"].max_abs < 1e-5
    artifact = load_artifact(tmp_path / "a")
    users = users_of("index", 5)
    found = artifact.forward(*inputs_of(artifact.signature, users))
    with torch.no_grad():
        mine = model(users[0], kjt_of(users[1]))
    assert not torch.equal(found["items"], mine["items"])
    assert not torch.remainder(found["items"] - mine["items"], NUM_ITEMS).any()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"context": ("user",)}, "context: got \\['user'\\], expected none with top_k"),
        ({"dense_dtype": "bfloat16"}, "dense_dtype: got 'bfloat16', expected 'float32' with top_k"),
    ],
    ids=["context", "bfloat16"],
)
def test_options_that_do_not_go_with_it(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ExportError, match=text):
        exported(tmp_path / "a", **options)
    assert list(tmp_path.iterdir()) == []


def test_random_samples_are_fewer_for_many_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.verify.samples, "_MAX_SCORES", 20 * NUM_ITEMS + 1)
    model = two_towers()
    report = export_model(retrieval_model(model, vectors_of(model, "index"), K), tmp_path / "a")
    assert report.num_samples == 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of clicks, a two-tower model that recsys-train made of it, and its items' vectors."""
    folder = tmp_path_factory.mktemp("trained")
    table = write_clicks(folder / "clicks.csv", num_rows=600)
    argv = ["--data", str(table), "--model", "twotower", "--item-features", "site_id,app_id"]
    argv += ["--over-layers", "8,4", "--embedding-dim", "4", "--out", str(folder / "model.pt")]
    assert train_main(argv) == 0
    _write_vectors(folder)
    return folder


def _write_vectors(folder: Path) -> None:
    argv = ["item-vectors", str(folder / "model.pt"), "--data", str(folder / "clicks.csv")]
    assert data_main([*argv, "--keep", "site_id", "--out", str(folder / "vectors.parquet")]) == 0


def test_from_a_table_of_clicks_to_the_best_items(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.artifact"
    argv = [trained / "model.pt", "--top-k", "7", "--items", trained / "vectors.parquet", "--out", out]
    assert run(*argv) == 0
    artifact = load_artifact(out)
    model: Any = build_model(load_checkpoint(trained / "model.pt")).eval()
    (block,) = rows_of(trained / "clicks.csv", model.inputs)
    batch = all_of(block).batch(np.arange(30))
    # The artifact mixes IDs itself.
    (raw,) = rows_of(trained / "clicks.csv", schema_for(artifact))
    kjt = all_of(raw).batch(np.arange(30)).kjt
    bags = {name: kjt[name] for name in artifact.manifest.schema.feature_names}
    found = artifact.forward(
        batch.dense,
        torch.cat([bags[use.name].lengths() for use in artifact.signature.sparse]),
        torch.cat([bags[use.name].values() for use in artifact.signature.sparse]),
    )
    table = parquet.read_table(trained / "vectors.parquet")
    with torch.no_grad():
        users = model.model.sparse_arch(batch.kjt).index_select(1, model.model.user_places).flatten(1)
        user = model.model.towers.user(torch.cat((model.transforms(batch.dense), users), dim=1)).numpy()
    scores = user @ np.array(table.column("vector").to_pylist(), dtype=np.float32).T
    places = check_best(found, scores, error=0.02 * float(scores.std()))
    sites = table.column("site_id").take(places[0]).to_pylist()  # the line of docs/export/export.md
    assert sites == [table.column("site_id")[int(place)].as_py() for place in places[0]]


def _vectors_file(path: Path, vectors: Any) -> Path:
    parquet.write_table(pa.table({"vector": vectors}), path)
    return path


def _fixed(array: np.ndarray) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(array.astype(np.float32).ravel(), array.shape[1])


@pytest.mark.parametrize(
    ("vectors", "k", "text"),
    [
        (_fixed(np.ones((5, 4))), "6", "top_k: got 6, expected 1 to 5, the number of items"),
        (
            _fixed(np.ones((5, 3))),
            "2",
            "items: got vectors torch.float32 [5, 3], expected torch.float32 [N, 4]",
        ),
        (_fixed(np.full((5, 4), np.nan)), "2", "items: the vector of row 0 has NaN"),
        (pa.array([1.0, 2.0]), "1", "has no column 'vector' of lists of floats"),
        (pa.array([[1.0] * 4, [1.0] * 3]), "1", "has vectors of the widths [4, 3], or missing numbers"),
        (pa.array([[1.0] * 4, None]), "1", "or missing numbers"),
        (pa.array([[1.0] * 4, [1.0, None, 1.0, 1.0]]), "1", "or missing numbers"),
        (pa.array([], pa.list_(pa.float32())), "1", "expected at least one vector"),
    ],
    ids=["k", "width", "nan", "numbers", "ragged", "null", "null within", "none"],
)
def test_vectors_that_do_not_fit(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], vectors: Any, k: str, text: str
) -> None:
    file = _vectors_file(tmp_path / "vectors.parquet", vectors)
    assert run(trained / "model.pt", "--top-k", k, "--items", file) == 1
    assert text in capsys.readouterr().err
    assert not (trained / "model.artifact").exists()


def test_vectors_of_lists_and_of_doubles_are_read(trained: Path, tmp_path: Path) -> None:
    file = _vectors_file(
        tmp_path / "v.parquet", pa.array(np.random.default_rng(0).normal(size=(9, 4)).tolist())
    )
    argv = [trained / "model.pt", "--top-k", "9", "--items", file, "--out", tmp_path / "a"]
    assert run(*argv) == 0
    assert load_artifact(tmp_path / "a").signature.outputs[0].shape == (9,)


def test_vectors_of_another_model_are_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--data", trained / "clicks.csv", "--init-from", trained / "model.pt", "--freeze-dense"]
    assert train_main([str(word) for word in [*argv, "--out", tmp_path / "next.pt"]]) == 0
    words = [tmp_path / "next.pt", "--top-k", "3", "--items", trained / "vectors.parquet"]
    assert run(*words) == 1
    assert "the vectors in 'vectors.parquet' are another model's" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--top-k", "3"], 2, "--top-k and --items: got one of them, expected both or none"),
        (["--items", "v.parquet"], 2, "--top-k and --items: got one of them, expected both or none"),
        (["--top-k", "0", "--items", "v.parquet"], 2, "expected a whole number of at least 1"),
        (["--top-k", "1", "--items", "v.parquet"], 1, "items: cannot read 'v.parquet' as Parquet"),
    ],
)
def test_bad_usage(
    trained: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    assert run(trained / "model.pt", *words) == code
    assert text in capsys.readouterr().err


def test_a_delta_of_it_is_refused(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "best.artifact"
    argv = [trained / "model.pt", "--top-k", "7", "--items", trained / "vectors.parquet", "--out", out]
    assert run(*argv) == 0
    capsys.readouterr()
    words = ["--delta", trained / "model.pt", trained / "model.pt", "--artifact", out]
    assert run(*words, "--out", tmp_path / "d.delta") == 1
    assert "that the artifact does not have" in capsys.readouterr().err
