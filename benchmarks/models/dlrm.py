"""The model of the speed comparison, its artifacts, and random requests for it.

Shape letters: B batch, F features, R rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from export.config import DENSE_DTYPES, ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.base.cli import count, counts
from recsys.kernels import operators
from recsys.models.click import ClickModel, build_dlrm

NUM_TABLES = 26
EMBEDDING_DIM = 64
NUM_DENSE = 13
DENSE_LAYERS = (512, 256, EMBEDDING_DIM)
OVER_LAYERS = (512, 256, 1)
FEATURE_NAMES = tuple(f"feature_{i}" for i in range(NUM_TABLES))
DENSE_DTYPE_NAMES = tuple(DENSE_DTYPES)

# Minimum number of samples in rotation at every batch size: their rows (a row of 68 bytes lies in one or two
# cache lines of 64) take some 50 MB, more than the last-level cache of one core's group.
_NUM_DISTINCT_SAMPLES = 16_384
_NUM_DISTINCT_BATCHES = 64
_TABLE_STD = 0.25


@dataclass(frozen=True)
class Request:
    """One batch as plain tensors, as in a server.

    Attributes:
        dense: float32 ``[B, 13]``.
        lengths: int64 ``[F * B]``, key-major; all ones.
        values: int64 ``[F * B]``, key-major, uniform over the rows.
    """

    dense: Tensor
    lengths: Tensor
    values: Tensor


def add_options(parser: argparse.ArgumentParser, batch_sizes: Sequence[int], num_rounds: int) -> None:
    """Add the options of benchmarks of this model: ``--quick``, ``--rows``, ``--batch-sizes``, ``--rounds``, ``--dir``.

    Args:
        parser: Of the benchmark.
        batch_sizes: Those that it measures by default.
        num_rounds: Its turns by default.
    """
    sizes = ",".join(map(str, batch_sizes))
    parser.add_argument("--quick", action="store_true", help="small tables, short turns: does it run at all?")
    parser.add_argument("--rows", type=count, metavar="R", help="rows of each table (default 100000)")
    parser.add_argument("--batch-sizes", type=counts, metavar="B,B", help=f"default {sizes}")
    parser.add_argument(
        "--rounds", type=count, metavar="N", help=f"turns of each measurement (default {num_rounds})"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where temporary artifacts go")


def build(num_rows: int, seed: int = 0, num_tables: int = NUM_TABLES) -> ClickModel:
    """The float model: tables of ``num_rows`` rows, one feature each."""
    torch.manual_seed(seed)
    tables = [
        {
            "name": f"table_{i}",
            "num_embeddings": num_rows,
            "embedding_dim": EMBEDDING_DIM,
            "feature_names": [f"feature_{i}"],
        }
        for i in range(num_tables)
    ]
    model = build_dlrm(
        tables=tables,
        dense_in_features=NUM_DENSE,
        dense_arch_layer_sizes=DENSE_LAYERS,
        over_arch_layer_sizes=OVER_LAYERS,
    )
    # With torch's initial rows the tables, and errors in them, would hardly affect predictions.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".embedding_bags." in name:
                parameter.normal_(std=_TABLE_STD)
    return model.eval()


def export_and_load(model: ClickModel, folder: Path) -> dict[str, LoadedArtifact]:
    """An artifact for each dtype, written to disk and loaded from there.

    With the operators of torch and FBGEMM for each dtype of the dense layers, by its name; and where the native kernels
    are built, with these for each dtype of linear layers, by ``own`` and its name.
    """
    loaded = {}
    for dtype in DENSE_DTYPE_NAMES:
        path = folder / dtype
        export_model(model, path, ExportConfig(dense_dtype=dtype))
        loaded[dtype] = load_artifact(path, scripted=True)
    for dtype in () if operators.why_missing() else operators.LINEAR_DTYPES:
        path = folder / f"own-{dtype}"
        export_model(model, path, ExportConfig(linear_dtype=dtype))
        loaded[f"own {dtype}"] = load_artifact(path)
    return loaded


def requests(batch_size: int, num_rows: int, seed: int = 1) -> list[Request]:
    """Return distinct batches of one ID per feature."""
    num_batches = max(_NUM_DISTINCT_BATCHES, _NUM_DISTINCT_SAMPLES // batch_size)
    generator = torch.Generator().manual_seed(seed)
    return [
        Request(
            dense=torch.randn(batch_size, NUM_DENSE, generator=generator),
            lengths=torch.ones(NUM_TABLES * batch_size, dtype=torch.int64),
            values=torch.randint(0, num_rows, (NUM_TABLES * batch_size,), generator=generator),
        )
        for _ in range(num_batches)
    ]
