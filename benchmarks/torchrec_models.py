"""TorchRec's models, unmodified, from a state dict to answers of a server: ``python -m benchmarks.torchrec_models``.

Each model of ``benchmarks.models.torchrec_zoo`` is saved, exported by ``recsys-export --model`` for ``cpu`` and
``cpu,cpu``, and served by ``recsys-serve``. Answers for random rows are compared with those of TorchRec itself: of the
float model, and of TorchRec's own INT8 (``quantize_inference_model``).
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import logging
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from benchmarks.measure import command
from benchmarks.measure.processes import module, started
from benchmarks.measure.tables import tracked
from benchmarks.models.peer import PeerMissingError, check_installed
from export.cli import main as export
from recsys.artifact.batches.samples import Batch, random_batch
from recsys.artifact.load import load_artifact
from recsys.inputs.signature import Signature
from serve.client import Client

TARGETS = ("cpu", "cpu,cpu")
NUM_ROWS = 64
_SEED = 7


class UnknownModelError(ValueError):
    """A name is none of a model."""


@dataclass(kw_only=True)
class Row:
    """What became of one model.

    Attributes:
        name: The model's.
        glue: Lines of code that had to be written or changed.
        options: Options of ``recsys-export`` beyond ``--model``.
        error: The last line of the export's error; empty where it went through.
        is_refused_rightly: Whether the error is the one that the model must get.
        float_difference: By target, the largest of the answers to TorchRec's float model.
        int8_difference: By target, the largest of the answers to TorchRec's INT8.
        is_bit_equal: By target, whether the artifact, with torch's and FBGEMM's operators, gives TorchRec's INT8 bit
            by bit.
    """

    name: str
    glue: int
    options: tuple[str, ...] = ()
    error: str = ""
    is_refused_rightly: bool = False
    float_difference: dict[str, float] = field(default_factory=dict)
    int8_difference: dict[str, float] = field(default_factory=dict)
    is_bit_equal: dict[str, bool] = field(default_factory=dict)


def run(name: str, folder: Path, *, is_served: bool = True) -> Row:
    """Save, export, serve and compare one model.

    Args:
        name: A case of ``benchmarks.models.torchrec_zoo``.
        folder: An empty folder for its files.
        is_served: Whether to start servers, and not only to compare the artifact.

    Raises:
        StepError: A server did not start.
    """
    zoo = import_module("benchmarks.models.torchrec_zoo")
    case = zoo.CASES[name]
    row = Row(name=name, glue=case.glue, options=case.options)
    model = zoo.make(name)
    torch.save(model.state_dict(), folder / "state.pt")
    row.error = _export(folder / "state.pt", name, case.options)
    row.is_refused_rightly = bool(case.refused) and case.refused in row.error
    if row.error:
        return row
    model = model.get_submodule(case.part)
    for target in TARGETS:
        artifact = load_artifact(folder / "state.artifact", target=target, scripted=True)
        signature = artifact.manifest.signature
        batch = random_batch(signature, NUM_ROWS, torch.Generator().manual_seed(_SEED))
        arguments = _arguments(signature, batch, takes_batch=case.takes_batch)
        floats, int8 = _answer(model, arguments), _answer(quantized(model), arguments)
        (plain,) = artifact.forward(*batch.inputs()).values()
        served = _served(folder / "state.artifact", target, signature, batch) if is_served else plain
        row.is_bit_equal[target] = torch.equal(plain, int8)
        row.float_difference[target] = float((served - floats).abs().max())
        row.int8_difference[target] = float((served - int8).abs().max())
    return row


def quantized(model: nn.Module) -> nn.Module:
    """Return TorchRec's own INT8 of a model, which is not changed."""
    quantize = import_module("torchrec.inference.modules").quantize_inference_model
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="torch.ao.quantization is deprecated", category=DeprecationWarning
        )
        found: nn.Module = quantize(copy.deepcopy(model))
    return found


def _export(state: Path, name: str, options: Sequence[str]) -> str:
    """Export with the command; return the last line of its error, or nothing."""
    factory = (
        "--factory",
        "benchmarks.models.torchrec_zoo:make",
        "--factory-args",
        json.dumps({"name": name}),
    )
    devices = [word for target in TARGETS for word in ("--target", target)]
    errors = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        code = export([str(state), *factory, *devices, *options, "--json"])
    return (errors.getvalue().strip().splitlines() or [f"exit code {code}"])[-1] if code else ""


def _jagged(signature: Signature, batch: Batch) -> Any:
    return import_module("torchrec").KeyedJaggedTensor(
        keys=[feature.name for feature in signature.sparse],
        values=batch.values,
        lengths=batch.lengths,
        weights=batch.weights,
    )


def _arguments(signature: Signature, batch: Batch, *, takes_batch: bool) -> list[Any]:
    """Return the arguments of ``forward`` of a model of TorchRec."""
    features = _jagged(signature, batch)
    if not takes_batch:
        return [*batch.dense, features]
    kind = import_module("torchrec.distributed.test_utils.model_input").ModelInput
    labels = torch.zeros(batch.num_rows)
    return [kind(*batch.dense, idlist_features=features, idscore_features=None, label=labels)]


@torch.inference_mode()
def _answer(model: nn.Module, arguments: Sequence[Any]) -> Tensor:
    """Return what a model of TorchRec answers in this process."""
    found: Tensor = model(*arguments)
    return found


def _served(artifact: Path, target: str, signature: Signature, batch: Batch) -> Tensor:
    """Return what a live server answers."""
    options = ("--target", target, "--engine", "reference", "--port", "0", "--no-metrics", "--json")
    dense = {one.name: values for one, values in zip(signature.dense, batch.dense, strict=True)}
    with (
        started(module("serve.app.cli", str(artifact), *options)) as server,
        Client(server.address) as client,
    ):
        (found,) = client.predict(dense, _jagged(signature, batch)).values()
    return torch.from_numpy(found.copy())


def table_of(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    table = Table(title=f"TorchRec's models, served: {NUM_ROWS} random rows against TorchRec's answers")
    table.add_column("model", no_wrap=True)
    for heading in ("collections", "glue", "options", "export"):
        table.add_column(heading)
    for target in TARGETS:
        table.add_column(f"{target}: to float", justify="right")
        table.add_column("to its INT8", justify="right")
        table.add_column("bits")
    for row in rows:
        cells = [row.name, "TorchRec's", f"{row.glue} lines", " ".join(row.options)]
        cells.append(
            "yes" if not row.error else ("refused" if row.is_refused_rightly else f"failed: {row.error}")
        )
        for target in TARGETS if not row.error else ():
            equal = "equal" if row.is_bit_equal[target] else "not equal"
            cells += [f"{row.float_difference[target]:.1e}", f"{row.int8_difference[target]:.1e}", equal]
        table.add_row(*cells)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 1 where a model did not go through as it must."""
    parser = command.make_parser("torchrec_models", __doc__)
    parser.add_argument("models", nargs="*", help="some of the models (default: all)")
    return command.run(
        parser, argv, _measured, {PeerMissingError: 1, UnknownModelError: 2, **command.FAILURES}
    )


def _measured(args: argparse.Namespace, folder: Path) -> command.Measured:
    logging.getLogger("torch.fx").setLevel(logging.ERROR)
    check_installed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchRec imports what its dependencies have deprecated
        cases = import_module("benchmarks.models.torchrec_zoo").CASES
    unknown = sorted(set(args.models) - set(cases))
    if unknown:
        raise UnknownModelError(f"models: got {', '.join(unknown)}, expected some of {', '.join(cases)}")
    rows = []
    for name in tracked(args.models or list(cases), "models"):
        (folder / name).mkdir()
        rows.append(run(name, folder / name))
    return command.Measured(
        data={"models": [asdict(row) for row in rows]},
        shown=[table_of(rows)],
        status=0 if all(not row.error or row.is_refused_rightly for row in rows) else 1,
    )


if __name__ == "__main__":
    sys.exit(main())
