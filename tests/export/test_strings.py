"""The hashes of texts that an export writes into the signature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection
from recsys.artifact.batches.samples import read_samples
from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.base.hashing import hash_text
from recsys.errors import ExportError
from recsys.inputs.signature import IdPolicy
from tests.support.helpers import bag
from tests.support.models.export_models import exported

HASHED = {"sites": IdPolicy.HASH, "apps": IdPolicy.HASH}


def model() -> EmbeddingBagCollection:
    torch.manual_seed(0)
    tables = [bag("sites", 11, 4, ["site"]), bag("apps", 7, 4, ["app"]), bag("hours", 24, 4, ["hour"])]
    return EmbeddingBagCollection(tables)


def strings_of(path: Path, **options: object) -> dict[str, str]:
    _, artifact = exported(model(), path / "a", table_id_policies=HASHED, **options)
    return {s.name: s.strings for s in artifact.signature.sparse}


def test_a_hash_is_written_into_the_signature(tmp_path: Path) -> None:
    assert strings_of(tmp_path, strings={"site": "xxh64"}) == {"site": "xxh64", "app": "", "hour": ""}
    sparse = json.loads((tmp_path / "a" / MANIFEST_NAME).read_text())["signature"]["sparse"]
    assert [one.get("strings") for one in sparse] == ["xxh64", None, None]


def test_all_features_have_the_hash(tmp_path: Path) -> None:
    config = {"id_policy": IdPolicy.HASH, "strings": {"all": "xxh64"}}
    assert strings_of(tmp_path, **config) == dict.fromkeys(("site", "app", "hour"), "xxh64")


def test_a_single_file_has_it_too(tmp_path: Path) -> None:
    assert strings_of(tmp_path, strings={"app": "xxh64"}, single_file=True)["app"] == "xxh64"


@pytest.mark.parametrize(
    ("strings", "message"),
    [
        (
            {"sites": "xxh64"},
            r"strings: got unknown features \['sites'\], expected all or some of \['site', 'app'",
        ),
        (
            {"hour": "xxh64"},
            r"strings\['hour'\]: got 'xxh64', but table 'hours' has the ID policy reject, expected hash",
        ),
        ({"all": "xxh64"}, r"strings\['hour'\]: got 'xxh64', but table 'hours'"),
    ],
    ids=["unknown", "reject", "all"],
)
def test_features_that_cannot_have_one(tmp_path: Path, strings: dict[str, str], message: str) -> None:
    config = ExportConfig(strings=strings, table_id_policies=HASHED)
    with pytest.raises(ExportError, match=message):
        export_model(model(), tmp_path / "a", config)
    assert not (tmp_path / "a").exists()


def test_a_table_of_zeros_beyond_its_rows_has_none(tmp_path: Path) -> None:
    config = ExportConfig(strings={"hour": "xxh64"}, id_policy=IdPolicy.ZERO)
    with pytest.raises(ExportError, match="has the ID policy zero, expected hash"):
        export_model(model(), tmp_path / "a", config)


def test_an_unknown_hash() -> None:
    with pytest.raises(ExportError, match=r"strings\['site'\]: got 'md5', expected xxh64"):
        ExportConfig(strings={"site": "md5"})


def test_an_export_is_verified_with_samples_of_texts(tmp_path: Path) -> None:
    sample = {"sparse": {"site": [["85f751fd", "é"], []], "app": [[3], [-1]], "hour": [[23], [0]]}}
    (tmp_path / "samples").write_text(json.dumps(sample))
    report, artifact = exported(
        model(),
        tmp_path / "a",
        table_id_policies=HASHED,
        strings={"site": "xxh64", "app": "xxh64"},
        samples=tmp_path / "samples",
    )
    assert report.num_samples == 2
    batch = read_samples(tmp_path / "samples", artifact.signature)
    assert batch.values.tolist() == [hash_text("85f751fd"), hash_text("é"), 3, -1, 23, 0]
