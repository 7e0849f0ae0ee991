"""recsys-export: from a checkpoint to a verified artifact."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from torch import nn

from export.artifact.compiling import DEFAULT_ISA
from export.config import AUTO, DENSE_DTYPES, GRAPH_FORMATS, ExportConfig
from export.delta.delta import DeltaConfig, check_replaceable, export_delta
from export.delta.report import print_delta
from export.graph.prepared import Progress as OnProgress
from export.pipeline import export_model
from export.report import print_report
from export.source.load import Source, load_model, read_arguments
from export.source.torchrec_modules import our_names
from recsys.artifact.compiled import ISAS
from recsys.artifact.load import read_manifest
from recsys.cli import Parser, add_program_options, count, size
from recsys.configs import DataType
from recsys.errors import ExportError, PlanError
from recsys.hashing import STRING_HASHES
from recsys.kernels.operators import LINEAR_DTYPES
from recsys.models.retrieval import retrieval_model
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.plan_file import read_plan
from recsys.signature import BATCHES, IdPolicy

_EPILOG = """\
examples:
  recsys-export model.pt                                     INT8, one cpu target, into model.artifact/
  recsys-export model.pt --devices cpu,cpu --devices cuda:0  two targets that share their rows
  recsys-export model.pt --table-dtype user=int4 --id-policy hash
  recsys-export state.pt --model mypackage.models:make_ranker --model-args '{"dim": 64}'
  recsys-export run/                                         the newest checkpoint of a training run on many ranks
  recsys-export checkpoint/ --model mypackage.models:make    what torch.distributed.checkpoint wrote
  recsys-export rank0.pt rank1.pt --model mypackage.models:make   the state dicts that each rank saved
  recsys-export towers.pt --top-k 100 --items vectors.parquet     the best items for a user, out of those of the file
  recsys-export model.pt --linear-dtype auto --auto-data clicks.csv   the fastest linear layers that keep the AUC
  recsys-export --delta old.pt new.pt --artifact old.artifact     what changed, into new.delta, for the artifact

exit codes: 0 written, 1 the model or its file cannot be exported so, 2 bad usage
"""
_ROW_TYPES = {t.value.lower(): t for t in DataType if t is not DataType.BF16}
# Behind an argument of --features whose values are numbers.
_FLOAT = ":float"
_POLICIES = {p.value: p for p in IdPolicy if p is not IdPolicy.MAPPED}
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if the artifact was written, 1 if not, 2 for bad usage."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        _check_delta_options(arguments, parser)
        if (arguments.top_k is None) != (arguments.items is None):
            raise ExportError("--top-k and --items: got one of them, expected both or none")
        if arguments.delta:
            return _run_delta(arguments)
        checkpoint = _named(arguments.checkpoint[0])
        out = arguments.out or _default_out(
            checkpoint, ".artifact.pt" if arguments.single_file else ".artifact"
        )
        config = _config(arguments, checkpoint)
        source = _source_of(arguments, [checkpoint, *arguments.checkpoint[1:]], out)
    except (ExportError, PlanError) as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 2
    try:
        model = _retrieving(load_model(source), arguments)
        with _progress_bar() as progress:
            report = export_model(model, out, config, progress)
    except (ValueError, OSError) as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-export: interrupted, nothing was written", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        print_report(report, _report_console())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="recsys-export",
        description="Quantize, shard, trace and script a trained model; verify it; write an artifact.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "checkpoint",
        type=Path,
        nargs="+",
        help="what recsys-train wrote; with --model a state dict, a directory of torch.distributed.checkpoint, "
        "or the files of all ranks",
    )
    add("--out", type=Path, help="the artifact (default: the checkpoint's name with .artifact)")
    add("--name", help="the model's name on the wire (default: the checkpoint's)")
    add("--force", action="store_true", help="replace an artifact that is there")
    add("--single-file", action="store_true", help="one TorchScript file for torch::jit::load")
    add("--json", action="store_true", help="print the report as JSON")
    graphs = parser.add_argument_group("graphs")
    graphs.add_argument(
        "--format",
        default="torchscript",
        choices=list(GRAPH_FORMATS),
        dest="graph_format",
        help="how graphs are written: torchscript (default), pt2 (compiled by AOTInductor, beside an ExportedProgram; "
        "needs g++) or both",
    )
    graphs.add_argument(
        "--pt2-isa",
        default=DEFAULT_ISA,
        choices=list(ISAS),
        help=f"the instructions that compiled graphs use (default: {DEFAULT_ISA})",
    )
    rows = parser.add_argument_group("tables")
    rows.add_argument(
        "--dtype", default="int8", choices=list(_ROW_TYPES), help="row type of every table (default: int8)"
    )
    rows.add_argument("--table-dtype", action="append", default=[], metavar="TABLE=TYPE", help="of one table")
    rows.add_argument(
        "--id-policy",
        action="append",
        default=[],
        metavar="[TABLE=]POLICY",
        help="IDs out of range: reject (default), hash (modulo rows) or zero (a zero row)",
    )
    devices = parser.add_argument_group("devices")
    devices.add_argument(
        "--devices",
        action="append",
        metavar="D,D,...",
        help="a target's devices, such as cpu,cpu; repeatable (default: cpu)",
    )
    devices.add_argument(
        "--plan",
        action="append",
        default=[],
        metavar="[TARGET=]FILE",
        help="a sharding plan in JSON, for one target (such as cpu,cpu=plan.json) or for all",
    )
    devices.add_argument("--device-memory", metavar="SIZE", help="for rows on each device, such as 16GB")
    dense = parser.add_argument_group("dense layers")
    dense.add_argument(
        "--dense-dtype",
        default="float32",
        choices=list(DENSE_DTYPES),
        help="of the dense layers (default: float32)",
    )
    dense.add_argument(
        "--linear-dtype",
        default="float32",
        choices=[*LINEAR_DTYPES, AUTO],
        help="in which linear layers multiply, on the CPU; all but float32 need what make native builds; auto: the "
        "fastest here that is close enough to float32 (default: float32)",
    )
    dense.add_argument(
        "--auto-data", type=Path, metavar="TABLE", help="labelled examples, by whose AUC auto judges"
    )
    dense.add_argument(
        "--auto-bound",
        type=float,
        metavar="X",
        help="of auto: difference in AUC (default: 0.0005), or without data the largest of an output (default: 0.01)",
    )
    dense.add_argument(
        "--dense-width", action="append", default=[], metavar="NAME=N", help="width of a dense argument"
    )
    requests = parser.add_argument_group("requests")
    requests.add_argument(
        "--strings",
        action="append",
        default=[],
        metavar="FEATURE[=HASH]",
        help="requests may give this feature's texts, which the server hashes to IDs (all: every feature's; "
        f"default hash: {STRING_HASHES[0]}); repeatable",
    )
    requests.add_argument(
        "--batch",
        default="rows",
        choices=list(BATCHES),
        help="what a batch is: rows of any requests, which must not depend on each other (default), or one request, "
        "which the servers then never put together with others",
    )
    requests.add_argument(
        "--features",
        action="append",
        default=[],
        metavar="ARGUMENT[:float]=F1,F2",
        help="the features of a KeyedJaggedTensor argument, where the model's code does not tell; with :float their "
        "values are numbers, which requests send as weights; repeatable",
    )
    requests.add_argument(
        "--default",
        action="append",
        default=[],
        metavar="NAME",
        help="an input that is left at the default that forward gives it; repeatable",
    )
    requests.add_argument(
        "--outputs",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="the outputs to keep (default: all); those within another are named output_1.0, other.key",
    )
    ranking = parser.add_argument_group("ranking")
    ranking.add_argument(
        "--context",
        action="append",
        default=[],
        metavar="NAME[,NAME...]",
        help="inputs that a ranking request gives once for all of its rows, such as the user's",
    )
    retrieval = parser.add_argument_group("retrieval")
    retrieval.add_argument(
        "--top-k",
        type=count,
        metavar="K",
        help="of two towers, answer a user's features with the K items that score best and their scores",
    )
    retrieval.add_argument(
        "--items",
        type=Path,
        metavar="FILE",
        help="with --top-k: the items' vectors, as recsys-data item-vectors writes them; answers give their rows",
    )
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", metavar="MODULE:FUNCTION", help="a factory of yours, for a plain state dict"
    )
    model.add_argument("--model-args", metavar="JSON", help="the factory's keyword arguments")
    model.add_argument(
        "--submodule",
        default="",
        metavar="PATH",
        help="export this part of the model, such as a tower, or the model within one that computes a loss",
    )
    model.add_argument(
        "--unsafe-pickle",
        action="store_true",
        help="the checkpoint is a pickled module: loading it RUNS ANY CODE that the file holds",
    )
    model.add_argument("--samples", type=Path, help="requests in JSON, one a line, to verify with")
    _add_delta_options(parser)
    add_program_options(parser)
    return parser


def _config(arguments: argparse.Namespace, checkpoint: Path) -> ExportConfig:
    defaults = [text for text in arguments.id_policy if "=" not in text]
    policies = [_assignment(text, "--id-policy") for text in arguments.id_policy if "=" in text]
    plans = [_plan_option(text) for text in arguments.plan]
    features = [_assignment(text, "--features") for text in arguments.features]
    named = [target or "all targets" for target, _ in plans]
    doubled = sorted({target for target in named if named.count(target) > 1})
    if doubled:
        raise ExportError(f"--plan: got more than one for {', '.join(doubled)}, expected one")
    return ExportConfig(
        name=arguments.name or _stem(checkpoint),
        data_type=_ROW_TYPES[arguments.dtype],
        table_data_types={
            name: _one_of(value, _ROW_TYPES, "--table-dtype")
            for name, value in (_assignment(text, "--table-dtype") for text in arguments.table_dtype)
        },
        targets=tuple(tuple(text.split(",")) for text in arguments.devices or ["cpu"]),
        plan=next((plan for target, plan in plans if target is None), None),
        target_plans={target: plan for target, plan in plans if target is not None},
        device_memory_bytes=None if arguments.device_memory is None else _size(arguments.device_memory),
        id_policy=_one_of(defaults[-1], _POLICIES, "--id-policy") if defaults else None,
        table_id_policies={name: _one_of(value, _POLICIES, "--id-policy") for name, value in policies},
        dense_dtype=arguments.dense_dtype,
        linear_dtype=arguments.linear_dtype,
        auto_bound=arguments.auto_bound,
        auto_data=arguments.auto_data,
        dense_widths={
            name: _whole(value, "--dense-width")
            for name, value in (_assignment(text, "--dense-width") for text in arguments.dense_width)
        },
        features={name.removesuffix(_FLOAT): tuple(value.split(",")) for name, value in features},
        float_features=tuple(name.removesuffix(_FLOAT) for name, _ in features if name.endswith(_FLOAT)),
        defaults=tuple(arguments.default),
        outputs=tuple(name for text in arguments.outputs for name in text.split(",")),
        context=tuple(name for text in arguments.context for name in text.split(",")),
        strings=dict(
            _assignment(text, "--strings") if "=" in text else (text, STRING_HASHES[0])
            for text in arguments.strings
        ),
        batch=arguments.batch,
        samples=arguments.samples,
        graph_format=arguments.graph_format,
        pt2_isa=arguments.pt2_isa,
        single_file=arguments.single_file,
        overwrite=arguments.force,
    )


def _retrieving(model: nn.Module, arguments: argparse.Namespace) -> nn.Module:
    """Return the model, or with ``--top-k`` the retrieval of its items.

    Raises:
        ValueError: The model has no towers, or the items' vectors or K do not fit.
    """
    if arguments.top_k is None:
        return model
    # Arrow is imported only when it is needed.
    from recsys.data.vectors import read_item_vectors

    return retrieval_model(model, read_item_vectors(arguments.items, model), arguments.top_k)


def _assignment(text: str, option: str) -> tuple[str, str]:
    name, _, value = text.rpartition("=")
    if not name or not value:
        expected = {
            "--id-policy": "[TABLE=]POLICY",
            "--features": "ARGUMENT=F1,F2",
            "--plan": "[TARGET=]FILE",
            "--strings": "FEATURE[=HASH]",
        }.get(option, "NAME=VALUE")
        raise ExportError(f"{option}: got {text!r}, expected {expected}")
    return name, value


def _one_of(value: str, choices: dict[str, T], option: str) -> T:
    if value.lower() not in choices:
        raise ExportError(f"{option}: got {value!r}, expected one of {', '.join(choices)}")
    return choices[value.lower()]


def _whole(value: str, option: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
        raise ExportError(f"{option}: got {value!r}, expected a whole number of at least 1")
    return int(value)


def _size(text: str) -> int:
    try:
        return size(text)
    except argparse.ArgumentTypeError as error:
        raise ExportError(f"--device-memory: {error}") from None


def _plan_option(text: str) -> tuple[str | None, ShardingPlan]:
    """Parse ``TARGET=FILE`` or ``FILE``. An existing file's name is always taken as a file."""
    if "=" not in text or Path(text).is_file():
        return None, read_plan(Path(text))
    target, path = _assignment(text, "--plan")
    return target, read_plan(Path(path))


# Width in columns of a report to a pipe or a file.
_PIPE_WIDTH = 110


def _stem(checkpoint: Path) -> str:
    """Return a checkpoint's name without its suffix."""
    if checkpoint.is_dir():
        return checkpoint.name or "model"
    return checkpoint.name.removesuffix(".pt").removesuffix(".pth") or "model"


def _named(checkpoint: Path) -> Path:
    """Return the path of a checkpoint in a form that has a name."""
    return checkpoint.resolve() if checkpoint.name in ("", "..") else checkpoint


def _default_out(checkpoint: Path, suffix: str) -> Path:
    """Return the default output path, next to the checkpoint."""
    return checkpoint.with_name(_stem(checkpoint) + suffix)


def _source_of(arguments: argparse.Namespace, paths: list[Path], out: Path) -> Source:
    """Return the source of a model from the command's options.

    Raises:
        ExportError: The factory's arguments are not a JSON object.
    """
    return Source(
        path=paths[0],
        others=tuple(paths[1:]),
        factory=arguments.model,
        arguments=read_arguments(arguments.model_args),
        submodule=arguments.submodule,
        unsafe_pickle=arguments.unsafe_pickle,
        scratch=out.absolute().parent,
    )


def _report_console() -> Console:
    """Return the console for reports: stdout, wide enough for tables if it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


@contextmanager
def _progress_bar() -> Iterator[OnProgress]:
    """Show progress on stderr, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=total)
            bar.update(tasks[step], completed=done, total=total)

        yield show


# The command's options that also apply to deltas.
_DELTA_SHARED = {"checkpoint", "out", "force", "json", "model", "model_args", "submodule", "unsafe_pickle"}
_DELTA_OWN = ("artifact", "after", "tables_only")


def _add_delta_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of deltas."""
    group = parser.add_argument_group("deltas")
    group.add_argument(
        "--delta",
        action="store_true",
        help="write the rows that differ between two checkpoints, OLD NEW, for the artifact of the old one",
    )
    group.add_argument(
        "--artifact", type=Path, help="the artifact (default: the old checkpoint's name with .artifact)"
    )
    group.add_argument(
        "--after",
        type=Path,
        action="append",
        default=[],
        metavar="DELTA",
        help="a delta that was made for the artifact before, whose new checkpoint is now the old one; repeatable, in "
        "order",
    )
    group.add_argument(
        "--tables-only",
        action="store_true",
        help="where dense weights differ too, leave them as they are",
    )


def _check_delta_options(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Check that options of deltas go with ``--delta``, and those of artifacts do not.

    Raises:
        ExportError: Names the conflicting options.
    """
    given = [
        name
        for name in vars(arguments)
        if getattr(arguments, name) != parser.get_default(name) and name != "delta"
    ]
    if not arguments.delta:
        _refuse_options([name for name in given if name in _DELTA_OWN], "--delta with it")
        return
    _refuse_options(
        [name for name in given if name not in (*_DELTA_SHARED, *_DELTA_OWN)],
        "none with --delta: the artifact decides it",
    )
    if len(arguments.checkpoint) != 2:
        raise ExportError(f"--delta: got {len(arguments.checkpoint)} checkpoints, expected two: OLD NEW")


def _refuse_options(names: Sequence[str], expected: str) -> None:
    if names:
        raise ExportError(f"--{names[0].replace('_', '-')}: got it, expected {expected}")


def _run_delta(arguments: argparse.Namespace) -> int:
    """Make a delta; return 0 if it was written, 1 if not, 2 for bad usage."""
    old, new = (_named(path) for path in arguments.checkpoint)
    out = arguments.out or _default_out(new, ".delta")
    config = DeltaConfig(
        artifact=arguments.artifact or _default_out(old, ".artifact"),
        after=tuple(arguments.after),
        tables_only=arguments.tables_only,
        overwrite=arguments.force,
    )
    try:
        sources = [_source_of(arguments, [path], out) for path in (old, new)]
    except ExportError as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 2
    try:
        check_replaceable(out, config.overwrite)
        read_manifest(config.artifact)  # fails before anything that takes long
        before, after = (load_model(source) for source in sources)
        with _progress_bar() as progress, our_names():
            report = export_delta(before, after, out, config, progress)
    except (ValueError, OSError) as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-export: interrupted, nothing was written", file=sys.stderr)
        return 1
    if report.num_dense_left:
        print(
            f"recsys-export: warning: {report.num_dense_left} dense weights differ and stay as the artifact has them",
            file=sys.stderr,
        )
    if arguments.json:
        print(json.dumps(report.to_json()))
    else:
        print_delta(report, _report_console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
