"""Lists as tables have them, sent as one text: refused over every protocol, with the cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.base.hashing import hash_text
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.models.click import build_dlrm
from serve.client.errors import InvalidRequestError
from tests.conformance.support.harness import running
from tests.conformance.support.http_calls import ask
from tests.conformance.support.open_inference import assert_same_bits

pytestmark = pytest.mark.engine


def test_a_list_as_tables_have_it_is_no_text(tmp_path: Path) -> None:
    tables = tuple(
        TableSpec(name=name, num_embeddings=101, feature_names=(name,), ids="hash", **kinds)
        for name, kinds in (("site", {"strings": "xxh64", "separator": "|"}), ("item", {"separator": " "}))
    )
    model = build_dlrm(
        tables=[
            {"name": table.name, "num_embeddings": 101, "embedding_dim": 8, "feature_names": [table.name]}
            for table in tables
        ],
        dense_in_features=1,
        dense_arch_layer_sizes=[8],
        over_arch_layer_sizes=[8, 1],
    )
    model.inputs = Schema(  # type: ignore[assignment]  # as the trainer's models have it
        labels=(LabelColumn(name="click"),), dense=(DenseColumn(name="price"),), tables=tables
    )
    export_model(model, tmp_path / "artifact", ExportConfig())
    dense = {"dense_features": [[0.5], [1.0]]}
    with running(tmp_path / "artifact", "--http-port", "0", folder=tmp_path) as server:
        client = server.client()
        assert [sparse.separator for sparse in client.metadata().sparse] == ["|", " "]
        # Blanks around a value are no part of it, as in training.
        given = {"site": [[" a", "b c\n"], ["[d"]], "item": [["7", " 8 "], []]}
        ids = {"site": [[hash_text("a"), hash_text("b c")], [hash_text("[d")]], "item": [[7, 8], []]}
        assert_same_bits(client.predict(dense, given), client.predict(dense, ids))
        for name, text, separator in (
            ("site", "a|b", "|"),
            ("site", "['a']", "|"),
            ("item", "7 8", " "),
            ("item", "{7}", " "),
        ):
            sparse = {**ids, name: [["9"], [text]]}
            expected = (
                f"sparse[{name!r}].strings: got {text!r} at position 1, expected one value, not a list as tables have "
                f"it with {separator!r} between values: send each value as a text of its own"
            )
            with pytest.raises(InvalidRequestError) as refused:
                client.predict(dense, sparse)
            assert expected in str(refused.value)
            reply = ask(
                f"http://{server.http_address}/v1/models/model:predict",
                {"dense": dense, "sparse": {**sparse, name: ["9", text]}},
            )
            assert (reply.status, expected in reply.json()["error"]) == (400, True)
