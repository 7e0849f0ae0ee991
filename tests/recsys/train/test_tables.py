"""Training on tables: several labels, weights, IDs of every kind, frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from recsys.base.hashing import hash_text
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import infer
from recsys.inputs.schema import LabelColumn, Schema
from recsys.train.callbacks import Callback
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.job import TrainJob, train_over_ranks
from recsys.train.loop import evaluate
from recsys.train.stepping.ranks import ONE_RANK
from recsys.train.warm_start import read_start
from tests.support.training import train

_SMALL = ModelConfig(embedding_dim=8, dense_layers=(8,), over_layers=(8, 4))
_CONFIG = TrainConfig(batch_size=128, row_learning_rate=0.05)


def _table(num_rows: int = 2_000) -> pa.Table:
    """A table where ``bought`` follows the shop and ``viewed`` its opposite."""
    generator = np.random.default_rng(0)
    shop = generator.integers(0, 20, num_rows)
    return pa.table(
        {
            "bought": (generator.random(num_rows) < shop / 20).astype(int),
            "viewed": (generator.random(num_rows) > shop / 20).astype(int),
            "shop": [f"shop {i}" for i in shop],
            "user_id": generator.integers(0, 2**40, num_rows),
            "price": generator.normal(size=num_rows),
            "w": np.where(shop < 10, 0.0, 1.0),
        }
    )


def _schema(**changes: Any) -> Schema:
    inferred = infer(_table().drop_columns(["w"]), labels=("bought", "viewed")).schema
    return replace(inferred, **changes)


@pytest.mark.parametrize("model", ["dlrm", "mmoe"])
def test_several_labels_learn_each_their_own(model: str) -> None:
    dataset = table_dataset(_table(), _schema())
    trained, epochs = train(dataset, replace(_SMALL, model=model), replace(_CONFIG, epochs=8))
    last = min(epochs, key=lambda epoch: sum(metrics.loss for metrics in epoch.labels.values()))
    assert set(last.labels) == {"bought", "viewed"}
    assert last.held_out == last.labels["bought"]
    assert all(metrics.auc is not None and metrics.auc > 0.7 for metrics in last.labels.values())
    again = evaluate(trained, dataset)
    assert {name: m.auc for name, m in again.items()} == pytest.approx(
        {name: m.auc for name, m in last.labels.items()}, abs=1e-6
    )


def test_examples_of_weight_zero_teach_nothing() -> None:
    schema = _schema(labels=(LabelColumn(name="bought"),), weight="w")
    (model, _), (plain, _) = (
        train(table_dataset(_table(), s), _SMALL, _CONFIG) for s in (schema, replace(schema, weight=None))
    )
    path = "model.sparse_arch.embedding_bag_collection.embedding_bags.shop.weight"
    rows = {tables.name: tables.num_embeddings for tables in schema.tables}["shop"]
    unseen = [hash_text(f"shop {i}") % rows for i in range(10)]
    seen = [hash_text(f"shop {i}") % rows for i in range(10, 20)]
    weighted, unweighted = (m.state_dict()[path] for m in (model, plain))
    only_unseen = sorted(set(unseen) - set(seen))
    # Their gradients are zero, so no step has changed them, and untrained rows are cleared.
    assert not weighted[only_unseen].any()
    assert unweighted[only_unseen].any(dim=1).all()
    assert weighted[seen].any(dim=1).all()


def test_a_vocabulary_has_the_frequent_values_of_the_training_rows() -> None:
    table = pa.table(
        {
            "label": [0, 1] * 50,
            "city": (["a"] * 40 + ["b"] * 30 + ["c"] * 20) + ["d"] * 10,  # d is held out
        }
    )
    schema = infer(table).schema
    vocabulary = replace(schema.tables[0], ids="vocabulary", num_embeddings=4, min_count=2)
    dataset = table_dataset(table, replace(schema, tables=(vocabulary,)))
    model, _ = train(dataset, _SMALL, _CONFIG)
    (mapping,) = [m for name, m in model.named_modules() if name.endswith("_modules.city")]
    ids = torch.tensor([hash_text(text) for text in "abcd"])
    assert mapping.remap(ids).tolist() == [0, 1, 2, 3]
    few = replace(vocabulary, num_embeddings=3)
    assert table_dataset(table, replace(schema, tables=(few,))).vocabularies()["city"].tolist() == [
        hash_text("a"),
        hash_text("b"),
    ]


def test_rows_are_held_out_by_time() -> None:
    table = pa.table(
        {
            "label": [0, 1] * 10,
            "city": [f"city {i}" for i in range(20)],
            "day": [f"2026-01-{1 + (7 * i) % 20:02d}" for i in range(20)],
        }
    )
    schema = infer(table).schema
    assert schema.time == "day"
    dataset = table_dataset(table, replace(schema, held_out=0.25))
    (block,) = dataset.held_out()
    days = np.array([1 + (7 * i) % 20 for i in range(20)])
    assert dataset.num_held_out_rows == 5
    late = block.take(np.arange(5)).bags["city"].values.tolist()
    rows = schema.tables[0].num_embeddings
    assert late == [hash_text(f"city {i}") % rows for i in np.flatnonzero(days > 15)]
    from_date = table_dataset(table, replace(schema, held_out_from="2026-01-19"))
    assert from_date.num_held_out_rows == 2
    beyond = table_dataset(table, replace(schema, held_out_from="2027-01-01"))
    assert beyond.num_held_out_rows == 2
    assert beyond.notices == (
        "schema.held_out_from: all rows of column 'day' are before '2027-01-01' (the last: 2026-01-20 00:00:00); "
        "held out are the last 10% of the rows by it",
    )


def test_a_run_starts_from_another(tmp_path: Path) -> None:
    first = table_dataset(_table(1_000), _schema())
    job = TrainJob(dataset=first, model=_SMALL, train=_CONFIG, checkpoint_dir=tmp_path / "a")
    before = train_over_ranks(job, ONE_RANK, Callback(), whole=True)
    start = read_start(tmp_path / "a")
    later = table_dataset(_table().slice(1_000), start.schema or _schema())
    frozen = replace(_CONFIG, freeze_dense=True)
    job = TrainJob(dataset=later, model=_SMALL, train=frozen, start=start, checkpoint_dir=tmp_path / "b")
    after = train_over_ranks(job, ONE_RANK, Callback(), whole=True)
    assert before.state_dict is not None
    assert after.state_dict is not None
    changed = {n for n, t in before.state_dict.items() if not torch.equal(t, after.state_dict[n])}
    assert changed
    assert all("embedding_bags" in name for name in changed)
    with pytest.raises(ValueError, match="init_from: labels: the data has"):
        TrainJob(
            dataset=table_dataset(_table(), _schema(labels=(LabelColumn(name="bought"),))),
            model=_SMALL,
            train=_CONFIG,
            start=start,
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no complete checkpoint"):
        read_start(tmp_path / "empty")
