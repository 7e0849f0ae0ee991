"""The tables of the comparison: MovieLens-100k's ratings, and a click log like Criteo's.

Shape letters: F features of one ID, I dense features, L longest list, N rows.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from benchmarks.trainers.first_batch import NUM_NUMBERS, NUM_TEXTS
from benchmarks.trainers.plain_training import schema as click_schema
from benchmarks.trainers.public.task import TABLE_FILE, Rows, Task, padded
from recsys.data.examples import Bags, Dataset, Examples
from recsys.data.lines import DataError
from recsys.data.tables.dataset import table_dataset
from recsys.inputs.schema import LabelColumn, Schema, TableSpec

LABEL = "click"
#: The feature whose values are the groups of GAUC, where a table has one.
GROUP = "user_id"
#: A rating of at least this is a click.
_LIKED = 4.0
_CRITEO_TABLE_ROWS = 20_000
_LISTS = ("class",)
_OF_ITEMS, _OF_USERS = ("release_year", "class"), ("age", "gender", "occupation", "zip_code")
_HIDDEN_SEED = 1
# Different texts of the columns, in turns: from a country to an advertisement.
_NUM_VALUES = (10, 100, 1_000, 10_000)


def movielens(files: Path) -> tuple[pa.Table, Schema]:
    """Return ratings in the order of time with what the files say of users and items; IDs are numbered.

    Args:
        files: The files' common name without ``.inter``, ``.user`` and ``.item``, or one of them.

    Raises:
        DataError: A file is missing or has other columns.
    """
    ratings = _atomic(files, "inter", ("user_id", "item_id", "rating", "timestamp"))
    order = np.argsort(np.array(ratings["timestamp"], dtype=np.float64), kind="stable")
    users = _atomic(files, "user", ("user_id", *_OF_USERS))
    items = _atomic(files, "item", ("item_id", *_OF_ITEMS))
    texts = {name: [ratings[name][i] for i in order] for name in ("user_id", "item_id")}
    for table, key, names in ((users, "user_id", _OF_USERS), (items, "item_id", _OF_ITEMS)):
        places = {value: i for i, value in enumerate(table[key])}
        for name in names:
            texts[name] = [table[name][places[value]] for value in texts[key]]
    lists = {name: texts.pop(name) for name in _LISTS}
    columns: dict[str, pa.Array] = {name: pa.array(_numbered(values)) for name, values in texts.items()}
    columns |= {name: _numbered_lists(values) for name, values in lists.items()}
    liked = np.array(ratings["rating"], dtype=np.float64)[order] >= _LIKED
    specs = [
        TableSpec(
            name=name,
            num_embeddings=1 + int(max((column.flatten() if name in lists else column).to_numpy())),
            feature_names=(name,),
            pooling="MEAN" if name in lists else "SUM",
        )
        for name, column in columns.items()
    ]
    schema = Schema(labels=(LabelColumn(name=LABEL),), dense=(), tables=tuple(specs))
    return pa.table({LABEL: liked.astype(np.int64), **columns}), schema


def _atomic(files: Path, kind: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Return columns of one of RecBole's atomic files: tabs, and a header of names with types."""
    path = files.with_name(
        f"{files.name.removesuffix(files.suffix) if _is_atomic(files) else files.name}.{kind}"
    )
    if not path.is_file():
        raise DataError(
            f"movielens: got no file {path.name} beside the others, expected .inter, .user and .item"
        )
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    places = {heading.partition(":")[0]: i for i, heading in enumerate(header)}
    if missing := [name for name in names if name not in places]:
        raise DataError(f"{path.name}: missing columns {missing}, got {list(places)}")
    if short := next((i for i, row in enumerate(rows) if len(row) != len(header)), None):
        raise DataError(
            f"{path.name}, line {short + 2}: got {len(rows[short])} fields, expected {len(header)}"
        )
    return {name: [row[places[name]] for row in rows] for name in names}


def _is_atomic(files: Path) -> bool:
    return files.suffix in (".inter", ".user", ".item")


def _numbered(values: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of each value among the different ones."""
    found: NDArray[np.int64] = np.unique(np.array(values), return_inverse=True)[1].astype(np.int64)
    return found


def _numbered_lists(values: Sequence[str]) -> pa.ListArray:
    """Return the places of each text's words among the different words."""
    lists = [value.split() for value in values]
    offsets = np.cumsum([0, *map(len, lists)])
    words = _numbered([word for words in lists for word in words])
    return pa.ListArray.from_arrays(offsets.astype(np.int32), words)


def click_log(num_rows: int, seed: int = 0) -> tuple[pa.Table, Schema]:
    """Return rows like Criteo's, with clicks that a hidden logistic model draws.

    Texts are drawn by a power law. Each has a hidden bias and a vector in 4 dimensions, whose products over the first
    eight columns count too.
    """
    drawn, hidden = np.random.default_rng([seed, 0]), np.random.default_rng([seed, _HIDDEN_SEED])
    logits = np.full(num_rows, -1.5)
    total, squares = np.zeros((num_rows, 4)), np.zeros(num_rows)
    columns: dict[str, pa.Array] = {}
    for i in range(NUM_NUMBERS):
        numbers, missing = drawn.lognormal(2, 2, num_rows).astype(np.int64), drawn.random(num_rows) < 0.1
        columns[f"n{i}"] = pa.array(numbers, mask=missing)
        logits += hidden.normal(0, 0.1) * (np.log1p(np.where(missing, 0, numbers)) - 2)
    for i in range(NUM_TEXTS):
        num_values = _NUM_VALUES[i % len(_NUM_VALUES)]
        values = (drawn.random(num_rows) ** 3 * num_values).astype(np.int64)
        logits += hidden.normal(0, 0.25, num_values)[values]
        vectors = hidden.normal(0, 0.25, (num_values, 4))[values]
        if i < 8:
            total += vectors
            squares += (vectors**2).sum(1)
        columns[f"c{i}"] = pa.array(
            [f"{i:x}{value * 2654435761 % 2**32:08x}"[-8:] for value in values.tolist()]
        )
    logits += (total**2).sum(1) - squares
    clicks = drawn.random(num_rows) < 1 / (1 + np.exp(-logits))
    return pa.table({LABEL: clicks.astype(np.int64), **columns}), click_schema(_CRITEO_TABLE_ROWS)


def criteo(path: Path, num_rows: int) -> tuple[pa.Table, Schema]:
    """Return the first rows of a file of Criteo's: label, 13 numbers, 26 texts, with tabs, or commas and a header.

    Raises:
        DataError: The file is missing or has another number of columns.
    """
    names = [LABEL, *(f"n{i}" for i in range(NUM_NUMBERS)), *(f"c{i}" for i in range(NUM_TEXTS))]
    if not path.is_file():
        raise DataError(f"criteo: got no file {path.name}, expected a file of Criteo's")
    with path.open("rb") as file:
        is_commas = b"\t" not in file.readline()
    kinds = {name: pa.string() if name[0] == "c" and name != LABEL else pa.float64() for name in names}
    try:
        table = arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=int(is_commas)),
            parse_options=arrow_csv.ParseOptions(delimiter="," if is_commas else "\t"),
            convert_options=arrow_csv.ConvertOptions(column_types=kinds, strings_can_be_null=True),
        ).slice(0, num_rows)
    except pa.ArrowInvalid as error:
        raise DataError(f"{path.name}: {error}") from None
    columns = {name: _whole(table.column(name), kinds[name]) for name in names}
    return pa.table(columns), click_schema(_CRITEO_TABLE_ROWS)


def _whole(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return texts without gaps, and numbers of at least 0."""
    column = column.combine_chunks()
    if pa.types.is_string(kind):
        return column.fill_null("missing")
    numbers = np.maximum(column.fill_null(0).to_numpy(), 0).astype(np.int64)
    return pa.array(numbers, mask=column.is_null().to_numpy(zero_copy_only=False))


def write_task(name: str, table: pa.Table, schema: Schema, folder: Path) -> Task:
    """Write what all trainers get into a folder: the table, and its rows as recsys-train splits and hashes them."""
    path = folder / TABLE_FILE
    parquet.write_table(table, path)
    dataset = table_dataset(path, schema)
    lists = {spec.name: spec.num_embeddings for spec in schema.tables if spec.pooling == "MEAN"}
    task = Task(
        name=name,
        num_dense=len(schema.dense),
        features={spec.name: spec.num_embeddings for spec in schema.tables if spec.name not in lists},
        lists=lists,
        schema=schema.to_json(),
    )
    for part in ("train", "held_out"):
        encoded(dataset, part, task).save(folder, part)
    task.save(folder)
    return task


def encoded(dataset: Dataset, part: str, task: Task) -> Rows:
    """Return the rows of a part with the rows of their IDs."""
    blocks = dataset.train() if part == "train" else dataset.held_out()
    found = Examples.concatenate([block.take(np.arange(len(block))) for block in blocks])
    dense = np.nan_to_num(found.dense)
    return Rows(
        ids=np.stack([found.bags[name].values for name in task.features], axis=1),
        dense=np.log1p(dense),
        lists={name: _lists(found.bags[name]) for name in task.lists},
        labels=found.labels[:, 0],
    )


def _lists(bags: Bags) -> NDArray[np.int64]:
    return padded(bags.values, np.diff(bags.offsets))
