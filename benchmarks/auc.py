"""Whether quantization costs accuracy: the AUC of trained models before and after the export.

MovieLens-100k and Criteo's sample are measured where they are in --dir. The sample has too few lines to hold some out:
its AUC is that of all of them.

Shape letters: N number of examples.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.tables import table_of
from benchmarks.models.dlrm import DENSE_LAYERS, EMBEDDING_DIM, OVER_LAYERS, export_and_load
from recsys.artifact.load import LoadedArtifact
from recsys.data.batches import batches
from recsys.data.examples import Block, Dataset
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.metrics.exact import auc
from recsys.models.click import ClickModel
from recsys.train import fit
from recsys.train.commands.sources import DataConfig, open_dataset

#: Maximum difference of an artifact's AUC to the float model's.
TOLERANCE = 0.0005
#: Maximum difference between the artifact of our own float32 operators and that of torch's.
EQUAL = 1e-6
_BATCH_SIZE = 4096
_CRITEO = "criteo_sample.csv"
# So many lines at most are measured as a whole.
_FEW_ROWS = 10_000
_EPILOG = f"""\
examples:
  python -m benchmarks.auc --check
  python -m benchmarks.auc --dir ~/data --json

exit codes: 0 measured, 2 bad usage, {MISSED_TEXT}
"""
_FLOAT = "float model"


@dataclass(frozen=True, kw_only=True)
class AucResult:
    """One data set.

    Attributes:
        data: name of the source.
        num_held_out_rows: N, or the number of all examples where these are few.
        by_model: AUC on these examples, of the float model and of an artifact for each dense dtype.
    """

    data: str
    num_held_out_rows: int
    by_model: dict[str, float]

    @property
    def largest_difference(self) -> float:
        """The largest difference of an artifact's AUC from the float model's."""
        return max(abs(found - self.by_model[_FLOAT]) for found in self.by_model.values())

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "largest_difference": self.largest_difference, "tolerance": TOLERANCE}


def sources(quick: bool, folder: Path | None = None) -> list[DataConfig]:
    """Return the synthetic stream, and MovieLens-100k if it is in the folder, RECSYS_DATA_DIR or ../shared/data."""
    if quick:
        return [DataConfig(name="synthetic", limit_rows=20_000)]
    folder = folder or data_folder()
    found = [DataConfig(name="synthetic")]
    if (folder / "ml-100k.inter").is_file():
        found.append(DataConfig(name="movielens", path=folder))
    return found


def data_folder() -> Path:
    """Return the folder of data that the repository does not hold."""
    root = Path(__file__).resolve().parent.parent
    return Path(os.environ.get("RECSYS_DATA_DIR") or root.parent / "shared" / "data")


def compare_auc(source: DataConfig, folder: Path) -> AucResult:
    """Train a model with the layers of the speed comparison, export it, and measure all on held-out data."""
    dataset = open_dataset(source)
    fitted = fit(
        dataset,
        callbacks=[],
        embedding_dim=EMBEDDING_DIM,
        dense_layers=DENSE_LAYERS[:-1],
        over_layers=OVER_LAYERS[:-1],
    )
    model = fitted.model.module
    assert isinstance(model, ClickModel)
    found = {_FLOAT: _auc(dataset, _float_scores(model))}
    for dtype, artifact in export_and_load(model, folder / source.name).items():
        found[f"artifact, {dtype}"] = _auc(dataset, _artifact_scores(artifact))
    num_rows = sum(map(len, _measured(dataset)))
    return AucResult(data=dataset.name, num_held_out_rows=num_rows, by_model=found)


Scorer = Callable[[Tensor, KeyedJaggedTensor], Tensor]


def _float_scores(model: ClickModel) -> Scorer:
    def scores(dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        with torch.inference_mode():
            probabilities: Tensor = model(dense, features)["score"]
        return probabilities

    return scores


def _artifact_scores(artifact: LoadedArtifact) -> Scorer:
    names = [feature.name for feature in artifact.signature.sparse]

    def scores(dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        ordered = features.permute([features.keys().index(name) for name in names])
        return artifact.forward(dense, ordered.lengths(), ordered.values())["score"]

    return scores


def _auc(dataset: Dataset, scorer: Scorer) -> float:
    scored = [(scorer(b.dense, b.kjt), b.labels[:, 0]) for b in batches(_measured(dataset), _BATCH_SIZE)]
    scores, labels = (torch.cat(parts).numpy() for parts in zip(*scored, strict=True))
    found = auc(scores, labels)
    if found is None:
        raise ValueError(
            f"{dataset.name}: the held-out examples are all clicks or all none; AUC is undefined"
        )
    return found


def _measured(dataset: Dataset) -> Iterator[Block]:
    """Yield the held-out examples; all of them where they are few."""
    if dataset.num_train_rows + dataset.num_held_out_rows <= _FEW_ROWS:
        yield from dataset.train()
    yield from dataset.held_out()


def bars_of(result: AucResult) -> list[Bar]:
    """Return the bars of one data set: each type of linear layers against torch's float32 operators.

    None for dense layers in bfloat16, whose scores are rounded to 8 bits: among few examples ties move the AUC.
    """
    exact = result.by_model["artifact, float32"]
    bars = []
    for name, found in result.by_model.items():
        if name.startswith("artifact, own "):
            bar = EQUAL if name.endswith("float32") else TOLERANCE
            text = f"{result.data}: {name}, difference to float32"
            bars.append(Bar(text, bar, abs(found - exact), is_most=True))
    return bars


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = make_parser("auc", __doc__, _EPILOG, has_bars=True)
    parser.add_argument("--quick", action="store_true", help="a short synthetic stream alone")
    parser.add_argument("--dir", type=Path, dest="data", help="of the data (default: RECSYS_DATA_DIR)")
    return run(parser, argv, _compared)


def _compared(args: argparse.Namespace, folder: Path) -> Measured:
    data = args.data or data_folder()
    wanted = sources(args.quick, data)
    if not args.quick and (data / _CRITEO).is_file():
        wanted.append(DataConfig(name="criteo", path=data / _CRITEO))
    results = [compare_auc(source, folder) for source in wanted]
    rows = [
        {
            "data": result.data,
            "rows": f"{result.num_held_out_rows:,}",
            **{name: f"{value:.6f}" for name, value in result.by_model.items()},
        }
        for result in results
    ]
    return Measured(
        data={"auc": [result.to_json() for result in results]},
        shown=[table_of("AUC", rows)],
        bars=[bar for result in results for bar in bars_of(result)],
    )


if __name__ == "__main__":
    sys.exit(main())
