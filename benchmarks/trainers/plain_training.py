"""How many samples recsys-train takes per second of processor time, beside a plain PyTorch loop, in turns.

Both read a Parquet file, hash its texts to the same IDs and train a DLRM of the same sizes: those that recsys-train has
by default for tables, small ones, and wide ones. The plain loop reads the texts' dictionaries, hashes each different
text once, and has nn.Embedding(sparse=True) for each table and Adagrad for all. Both are measured with rows that are
already read, too. The dense layers' products alone are the limit of both.

Shape letters: B batch, D embedding dim, F sparse features, I dense features, N rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import xxhash
from numpy.typing import NDArray
from pyarrow import parquet
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.profiling import shares
from benchmarks.measure.tables import table_of
from benchmarks.trainers.first_batch import NUM_NUMBERS, NUM_TEXTS, write_table
from recsys.base.cli import count
from recsys.base.hashing import ID_MASK
from recsys.data.batches import EpochOrder, batches
from recsys.data.examples import Dataset, LabeledBatch
from recsys.data.prefetch import prefetched
from recsys.data.tables.dataset import table_dataset
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.train.commands.defaults import DEFAULTS
from recsys.train.config import MATMUL_PRECISIONS, ModelConfig, RunConfig, TrainConfig
from recsys.train.stepping.ranks import ONE_RANK, process_group
from recsys.train.stepping.trainer import Trainer

#: How many times the plain loop's samples ours should train.
TARGET = 1.5
PLAIN, PLAIN_READ = "plain PyTorch", "plain PyTorch, already read"
OURS, OURS_READ = "recsys-train", "recsys-train, already read"
OURS_BF16 = "recsys-train --matmul-precision bfloat16"
PRODUCTS = "products of the dense layers alone"
#: Dense features ``[B, I]``, IDs ``[F, B]`` and labels ``[B]``.
PlainBatch = tuple[Tensor, Tensor, Tensor]
_DIM = ModelConfig.embedding_dim
_TABLE_ROWS = 100_000
_LEARNING_RATE = 0.01
_EPILOG = f"""\
examples:
  python -m benchmarks.trainers.plain_training
  python -m benchmarks.trainers.plain_training --rows 200000 --profile

exit codes: 0 measured, 2 bad usage, {MISSED_TEXT}
"""


@dataclass(frozen=True, kw_only=True)
class PlainResult:
    """One side.

    Attributes:
        name: of the side.
        samples_per_cpu_s: the median of the rounds.
        ratio: to the plain loop, the median of the rounds.
        ratio_to_read: to the plain loop over rows that are already read.
    """

    name: str
    samples_per_cpu_s: float
    ratio: float
    ratio_to_read: float


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A DLRM's layers and its batches.

    Attributes:
        name: of the option ``--sizes``.
        batch_size: B.
        dense: sizes of the layers on the dense features; one of D follows.
        over: sizes of the layers over the interactions; one of 1 follows.
    """

    name: str
    batch_size: int
    dense: tuple[int, ...]
    over: tuple[int, ...]

    def stacks(self) -> tuple[list[int], list[int]]:
        """Return the widths of both stacks, inputs and results included."""
        pairs = (NUM_TEXTS + 1) * NUM_TEXTS // 2
        return [NUM_NUMBERS, *self.dense, _DIM], [_DIM + pairs, *self.over, 1]


_TABLE = DEFAULTS["table"]
SIZES = (
    Sizes(
        name="default",
        batch_size=_TABLE.train.batch_size,
        dense=_TABLE.model.dense_layers,
        over=_TABLE.model.over_layers,
    ),
    Sizes(
        name="small",
        batch_size=TrainConfig.batch_size,
        dense=ModelConfig.dense_layers,
        over=ModelConfig.over_layers,
    ),
    Sizes(name="wide", batch_size=2048, dense=(512, 256), over=(512, 256)),
)


class PlainDLRM(nn.Module):
    """A DLRM as a tutorial has it: a table for each feature, pairwise products by ``bmm``."""

    triangle: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        tables = [nn.Embedding(_TABLE_ROWS, _DIM, sparse=True) for _ in range(NUM_TEXTS)]
        for table in tables:
            nn.init.uniform_(table.weight, -0.01, 0.01)
        self.tables = nn.ModuleList(tables)
        dense, over = sizes.stacks()
        self.bottom = dense_layers(dense, ends_linear=False)
        self.top = dense_layers(over, ends_linear=True)
        self.register_buffer("triangle", torch.triu_indices(NUM_TEXTS + 1, NUM_TEXTS + 1, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Map ``[B, I]`` and ``[F, B]`` to logits ``[B]``."""
        below = self.bottom(dense)
        vectors = torch.stack([below, *(table(ids[i]) for i, table in enumerate(self.tables))], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.triangle[0], self.triangle[1]]
        logits: Tensor = self.top(torch.cat([below, pairs], dim=1))
        return logits.squeeze(1)


def dense_layers(sizes: Sequence[int], *, ends_linear: bool) -> nn.Sequential:
    """Return linear layers of these widths with ReLU after each, or between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*(layers[:-1] if ends_linear else layers))


class Plain:
    """The plain loop, over the file or over batches that are read beforehand.

    Args:
        read: Starts an epoch over batches: the model's inputs, and labels ``[B]``.
        model: Gives logits ``[B]``.
    """

    def __init__(self, read: Callable[[], Iterable[tuple[Tensor, ...]]], model: nn.Module) -> None:
        self._read = read
        self._model = model
        self._optimizer = torch.optim.Adagrad(self._model.parameters(), lr=_LEARNING_RATE)

    def epoch(self) -> None:
        """Train on all batches."""
        for *inputs, labels in self._read():
            self._optimizer.zero_grad()
            functional.binary_cross_entropy_with_logits(self._model(*inputs), labels).backward()
            self._optimizer.step()


def plain_batches(path: Path, num_rows: int, batch_size: int) -> Iterator[PlainBatch]:
    """Yield the first rows of a table in a random order; a missing number is 0, and no text is missing."""
    texts = [f"c{i}" for i in range(NUM_TEXTS)]
    table = parquet.read_table(path, read_dictionary=texts).slice(0, num_rows)
    ids = np.stack([plain_ids(table.column(name).combine_chunks(), _TABLE_ROWS) for name in texts])
    numbers = [table.column(f"n{i}").fill_null(0).to_numpy() for i in range(NUM_NUMBERS)]
    dense = np.log1p(np.stack(numbers, axis=1, dtype=np.float32, casting="unsafe"))
    labels = table.column("click").to_numpy().astype(np.float32)
    order = EpochOrder(seed=0, epoch=0).of_block(0, num_rows)
    for start in range(0, num_rows, batch_size):
        rows = order[start : start + batch_size]
        yield (
            torch.from_numpy(dense[rows]),
            torch.from_numpy(ids[:, rows]),
            torch.from_numpy(labels[rows]),
        )


def plain_ids(texts: pa.DictionaryArray, num_rows: int) -> NDArray[np.int64]:
    """Return the row of each text in a table, ``[N]``."""
    different = texts.dictionary.cast(pa.binary()).to_pylist()
    hashes = np.fromiter(map(xxhash.xxh64_intdigest, different), np.uint64, len(different))
    rows = (hashes & np.uint64(ID_MASK)).astype(np.int64) % num_rows
    of_texts: NDArray[np.int64] = rows[texts.indices.to_numpy()]
    return of_texts


def check_same(plain: Sequence[PlainBatch], ours: Sequence[LabeledBatch]) -> None:
    """Check that both loops train on the same IDs, in any order."""
    theirs = torch.cat([ids for _, ids, _ in plain], dim=1)
    made = torch.cat([batch.kjt.values().view(NUM_TEXTS, -1) for batch in ours], dim=1)
    assert torch.equal(theirs.sort(dim=1).values, made.sort(dim=1).values)


class Ours:
    """The trainer of recsys-train."""

    def __init__(self, dataset: Dataset, sizes: Sizes, made: Sequence[LabeledBatch] = ()) -> None:
        self._dataset, self._batch_size, self._made = dataset, sizes.batch_size, made
        model = ModelConfig(embedding_dim=_DIM, dense_layers=sizes.dense, over_layers=sizes.over)
        config = TrainConfig(batch_size=sizes.batch_size, optimizer="adagrad", learning_rate=_LEARNING_RATE)
        self._trainer = Trainer(model.factory, model.arguments(dataset), config, ONE_RANK)

    def epoch(self) -> None:
        """Train on all rows, which are read unless they are given."""
        if self._made:
            for _ in self._trainer.steps(self._made):
                pass
            return
        source = batches(self._dataset.train(), self._batch_size, EpochOrder(seed=0, epoch=0))
        with prefetched(source, RunConfig.prefetch) as ahead:
            for _ in self._trainer.steps(ahead):
                pass


class Products:
    """The products that dense layers need in float32: each one's result and both gradients.

    Args:
        stacks: The widths of layers one after the other, inputs and results included.
        batch_size: B.
        num_samples: Of an epoch.
    """

    def __init__(self, stacks: Sequence[Sequence[int]], batch_size: int, num_samples: int) -> None:
        pairs = [pair for widths in stacks for pair in pairwise(widths)]
        self._layers = [
            (torch.rand(batch_size, n), torch.rand(m, n), torch.rand(batch_size, m)) for n, m in pairs
        ]
        self._num_batches = round(num_samples / batch_size)

    @torch.no_grad()
    def epoch(self) -> None:
        """Multiply for all batches."""
        for _ in range(self._num_batches):
            for given, weight, gradient in self._layers:
                torch.mm(given, weight.t())
                torch.mm(gradient.t(), given)
                if given.size(1) != NUM_NUMBERS:
                    torch.mm(gradient, weight)


def _in_bfloat16(epoch: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        torch.set_float32_matmul_precision(MATMUL_PRECISIONS["bfloat16"])
        try:
            epoch()
        finally:
            torch.set_float32_matmul_precision(MATMUL_PRECISIONS["float32"])

    return run


def schema(table_rows: int) -> Schema:
    """Return the use of columns like Criteo's: those of ``benchmarks.trainers.first_batch.write_table``."""
    return Schema(
        labels=(LabelColumn(name="click"),),
        dense=tuple(DenseColumn(name=f"n{i}", log1p=True) for i in range(NUM_NUMBERS)),
        tables=tuple(
            TableSpec(
                name=f"c{i}",
                num_embeddings=table_rows,
                feature_names=(f"c{i}",),
                ids="hash",
                strings="xxh64",
            )
            for i in range(NUM_TEXTS)
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    torch.set_num_threads(1)
    num_rows = 8_192 if args.quick else args.rows
    chosen = [sizes for sizes in SIZES if args.sizes in ("all", sizes.name)]
    with process_group(ONE_RANK):
        path = write_table(folder, num_rows, "parquet")
        dataset = table_dataset(path, schema(_TABLE_ROWS))
        found = {sizes: _results(path, dataset, sizes, args) for sizes in chosen}
    return Measured(
        data={"results": {sizes.name: list(map(asdict, results)) for sizes, results in found.items()}},
        shown=[_table(sizes, results, dataset.num_train_rows) for sizes, results in found.items()],
        bars=[bar for sizes, results in found.items() for bar in _bars(sizes, results)],
    )


def _bars(sizes: Sizes, results: Sequence[PlainResult]) -> list[Bar]:
    found = {result.name: result for result in results}
    return [
        Bar(f"{sizes.name}: {OURS} ÷ {PLAIN}", TARGET, found[OURS].ratio),
        Bar(f"{sizes.name}: {OURS} ÷ {PLAIN_READ}", TARGET, found[OURS].ratio_to_read),
        Bar(f"{sizes.name}: {OURS_READ} ÷ {PLAIN_READ}", TARGET, found[OURS_READ].ratio_to_read),
        Bar(f"{sizes.name}: {OURS_BF16} ÷ {PLAIN_READ}", TARGET, found[OURS_BF16].ratio_to_read),
    ]


def _results(path: Path, dataset: Dataset, sizes: Sizes, args: argparse.Namespace) -> list[PlainResult]:
    made = list(batches(dataset.train(), sizes.batch_size, EpochOrder(seed=0, epoch=0)))
    read = partial(plain_batches, path, dataset.num_train_rows, sizes.batch_size)
    plain = list(read())
    check_same(plain, made)
    sides: dict[str, Callable[[], None]] = {
        PLAIN: Plain(read, PlainDLRM(sizes)).epoch,
        PLAIN_READ: Plain(lambda: plain, PlainDLRM(sizes)).epoch,
        OURS: Ours(dataset, sizes).epoch,
        OURS_READ: Ours(dataset, sizes, made).epoch,
        OURS_BF16: _in_bfloat16(Ours(dataset, sizes).epoch),
        PRODUCTS: Products(sizes.stacks(), sizes.batch_size, dataset.num_train_rows).epoch,
    }
    results = _in_turns(sides, dataset.num_train_rows, 1 if args.quick else args.rounds)
    if args.profile:
        for name in (PLAIN_READ, OURS_READ):
            _print_profile(f"{sizes.name}: {name}", sides[name])
    return results


def _table(sizes: Sizes, results: Sequence[PlainResult], num_samples: int) -> Table:
    title = (
        f"{sizes.name} sizes, samples per processor second: {num_samples:,} rows, batch {sizes.batch_size}, layers "
        f"{'-'.join(map(str, sizes.dense))} and {'-'.join(map(str, sizes.over))}"
    )
    rows = [
        {
            "side": result.name,
            "samples/s": f"{result.samples_per_cpu_s:,.0f}",
            f"÷ {PLAIN}": f"{result.ratio:.2f}",
            f"÷ {PLAIN_READ}": f"{result.ratio_to_read:.2f}",
        }
        for result in results
    ]
    return table_of(title, rows)


def _in_turns(sides: dict[str, Callable[[], None]], num_samples: int, num_rounds: int) -> list[PlainResult]:
    """Measure in turns; the first round only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(num_rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            began = time.process_time()
            sides[name]()
            if number:
                seconds[name].append(time.process_time() - began)
    return [
        PlainResult(
            name=name,
            samples_per_cpu_s=num_samples / statistics.median(found),
            ratio=_ratio(seconds[PLAIN], found),
            ratio_to_read=_ratio(seconds[PLAIN_READ], found),
        )
        for name, found in seconds.items()
    ]


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def _print_profile(name: str, epoch: Callable[[], None]) -> None:
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded:
        epoch()
    print(name, file=sys.stderr)
    for share in shares(recorded.key_averages(), 1)[:25]:
        print(
            f"  {share.share:6.1%} {share.self_us:12.0f} µs {share.calls:8.0f} {share.name}", file=sys.stderr
        )


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("trainers.plain_training", __doc__, _EPILOG, has_bars=True)
    parser.add_argument("--quick", action="store_true", help="few rows: does it run at all?")
    parser.add_argument(
        "--rows", type=count, default=100_000, metavar="N", help="of the table (default 100000)"
    )
    names = ["all", *(sizes.name for sizes in SIZES)]
    parser.add_argument("--sizes", choices=names, default="all", help="of layers and batches (default all)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="turns of each side (default 5)")
    parser.add_argument("--profile", action="store_true", help="print where an epoch's time goes, to stderr")
    return parser


if __name__ == "__main__":
    sys.exit(main())
