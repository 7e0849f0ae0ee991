"""Ten tables in the layouts of published ones go the whole road as they are: no schema is edited, no code written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from export.cli import main as export_main
from recsys.checkpoint import load_checkpoint
from recsys.data.cli import main as data_main
from recsys.train.commands.train import main as train_main
from serve.tools.predict import main as predict_main
from tests.support import published_tables
from tests.support.published_tables import NUM_ROWS
from tests.support.serve.spawned import spawned

_CODES = tuple(f"C{i}" for i in range(1, 27))
# What is known only after a click.
_FEEDBACK = ("is_like", "is_comment", "long_view", "is_profile_enter", "play_time_ms")
# The label, the time, what is sparse, what is dense, dates, and what is ignored though it differs between rows.
_USES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "criteo": ("label", "", _CODES, tuple(f"I{i}" for i in range(1, 14)), (), ()),
    "avazu": (
        *("click", "hour"),
        (
            *("banner_pos", "site_id", "site_domain", "site_category", "device_ip", "device_model"),
            *("device_conn_type", "C14", "C20"),
        ),
        *((), (), ("id",)),
    ),
    "movielens": ("rating", "timestamp", ("userId", "movieId"), (), (), ()),
    "amazon": (
        *("overall", "reviewTime", ("verified", "reviewerID", "asin", "reviewerName", "image", "vote"), ()),
        *(("unixReviewTime",), ("reviewText", "summary", "style")),
    ),
    "ali_ccp": (
        *("click", "", ("common_feature_index", "features"), ("num_features",), ()),
        ("sample_id", "conversion"),
    ),
    "kuairand": (
        *("is_click", "time_ms", ("user_id", "video_id", "hourmin", "tab"), ("duration_ms",), ("date",)),
        _FEEDBACK,
    ),
    "yelp": ("stars", "date", ("user_id", "business_id", "useful", "cool"), (), (), ("review_id", "text")),
    "tenrec": (
        *(
            "click",
            "",
            ("user_id", "item_id", "video_category", "gender", *(f"hist_{i}" for i in range(1, 11))),
        ),
        *(("age",), (), ("follow", "like", "share", "watching_times")),
    ),
    "recbole": ("label", "timestamp", ("user_id", "item_id", "history"), ("dwell",), (), ()),
    "duckdb": (
        *(
            "clicked",
            "ts",
            ("user_uuid", "item_id", "tags", "seen_ids", "device", "slot"),
            ("price",),
            ("day",),
        ),
        ("place",),
    ),
}
_SMALL = [
    "--embedding-dim",
    "4",
    "--over-layers",
    "8",
    "--dense-layers",
    "8",
    "--batch-size",
    "16",
    "--epochs",
    "6",
]
_RATES = ["--learning-rate", "0.01", "--row-learning-rate", "0.1"]
_SAME = "the same in every row"


@dataclass(frozen=True)
class Road:
    """A table whose model is in the repository.

    Attributes:
        auc: Of the held-out rows.
        scores: Of all rows, by the exported model.
    """

    auc: float
    scores: NDArray[np.float32]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Callable[[str], Road]:
    """Trains and exports a table, once."""
    done: dict[str, Road] = {}

    def go(name: str) -> Road:
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            path = getattr(published_tables, name)(folder)
            model, artifact = folder / "model.pt", repository / name / "1"
            assert train_main(["--data", str(path), "--out", str(model), *_SMALL, *_RATES]) == 0
            artifact.parent.mkdir()
            assert export_main([str(model), "--dtype", "fp32", "--out", str(artifact)]) == 0
            scored = folder / "scores.parquet"
            assert predict_main([str(artifact), "--data", str(path), "--out", str(scored)]) == 0
            scores = parquet.read_table(scored).column("score").to_numpy()
            done[name] = Road(load_checkpoint(model).info["metrics"]["auc"], scores)
        return done[name]

    return go


@pytest.mark.parametrize("name", _USES)
def test_what_inspect_proposes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = getattr(published_tables, name)(tmp_path)
    assert data_main(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_rows"] == NUM_ROWS
    of = {
        use: tuple(c["name"] for c in found["columns"] if c["use"] == use and c["reason"] != _SAME)
        for use in ("label", "time", "sparse", "dense", "date", "ignored")
    }
    label, time, sparse, dense, dates, ignored = _USES[name]
    assert (of["label"], of["time"]) == ((label,), (time,) if time else ())
    assert (of["sparse"], of["dense"], of["date"]) == (sparse, dense, dates)
    assert set(of["ignored"]) == set(ignored)
    # Amazon's votes have commas between thousands.
    expected = ["column 'vote'"] if name == "amazon" else []
    assert [warning.split(":")[0] for warning in found["warnings"]] == expected


@pytest.mark.parametrize("name", _USES)
def test_a_published_table_is_learned_and_scored(name: str, road: Callable[[str], Road]) -> None:
    done = road(name)
    assert done.auc > 0.6
    assert len(done.scores) == NUM_ROWS
    assert len(np.unique(done.scores)) > 100


def test_one_server_answers_for_all(
    road: Callable[[str], Road], repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in _USES:
        road(name)
    command = [
        sys.executable,
        "-m",
        "serve.app.cli",
        "--repository",
        str(repository),
        "--port",
        "0",
        "--json",
    ]
    with spawned([*command, "--metrics-port", "0"], tmp_path / "server.log") as server:
        for name in _USES:
            capsys.readouterr()
            to = [server.address, "--model", name]
            assert predict_main([*to, "--example", "--rows", "3"]) == 0
            request = tmp_path / f"{name}.json"
            request.write_text(capsys.readouterr().out)
            assert predict_main([*to, "--json-request", str(request), "--json"]) == 0
            scores = np.asarray(json.loads(capsys.readouterr().out)["score"]).ravel()
            # The examples are rows of the table.
            assert scores.shape == (3,)
            assert np.isclose(scores[:, None], road(name).scores, rtol=1e-5).any(axis=1).all(), name
