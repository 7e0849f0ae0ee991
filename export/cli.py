"""recsys-export: from a checkpoint to a verified artifact."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

from export.artifact.destination import Upload
from export.config import ExportConfig, PlainOptions, read_of_forward
from export.delta.compact import compact
from export.delta.delta import DeltaConfig, check_replaceable, export_delta
from export.delta.report import DeltaReport, print_delta
from export.graph.prepared import Progress as OnProgress
from export.options import EQUAL, FLOAT, POLICIES, ROW_TYPES, parse
from export.pipeline import export_model
from export.plain.given import read_inputs
from export.report import print_report
from export.source.load import Source, load_model, read_arguments, trained_model, untrained_model
from export.source.torchrec_modules import patch_torchrec_names
from recsys.artifact.parts import read_manifest
from recsys.base.hashing import STRING_HASHES
from recsys.base.remote import RemoteError
from recsys.checkpoint.single_file import load_checkpoint
from recsys.checkpoint.touched import touched_since
from recsys.errors import ExportError, PlanError
from recsys.inputs.example_rows import held_by
from recsys.models.retrieval import retrieval_model
from recsys.sharding.plan.plan import ShardingPlan, read_plan

T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if the artifact was written, 1 if not, 2 for bad usage."""
    arguments = parse(argv)
    try:
        _check_delta_options(arguments)
        if (arguments.top_k is None) != (arguments.items is None):
            raise ExportError("--top-k and --items: got one of them, expected both or none")
        if arguments.push_rows:
            return _run_push(arguments)
        if arguments.compact:
            return _run_compact(arguments)
        if arguments.delta:
            return _run_delta(arguments)
        if arguments.explain:
            return _explain(arguments)
        if isinstance(arguments.out, str):
            upload = Upload(arguments.out, single_file=arguments.single_file, overwrite=arguments.force)
            with upload:
                return _run(arguments, upload)
        return _run(arguments, None)
    except (ExportError, PlanError) as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 2
    except RemoteError as error:
        print(f"recsys-export: out: {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace, upload: Upload | None) -> int:
    """Export an artifact; return the exit status.

    Raises:
        ExportError: An option is wrong.
        PlanError: A plan is.
    """
    checkpoint = _named(arguments.checkpoint[0])
    given = arguments.out if upload is None else upload.path
    out = given or _default_out(checkpoint, ".artifact.pt" if arguments.single_file else ".artifact")
    plain = _plain_options(arguments)
    config = _config(arguments, arguments.name or _name_of(given) or _stem(checkpoint), plain)
    source = _source_of(arguments, [checkpoint, *arguments.checkpoint[1:]], out, plain)
    try:
        notes: list[str] = []
        model = _retrieving(load_model(source, notes), arguments)
        with _progress_bar() as progress:
            report = export_model(model, out, config, progress)
        if upload is not None:
            upload.put()
            report = replace(report, path=arguments.out)
        rules = tuple(f"{checkpoint.name}: read {rule}" for rule in dict.fromkeys(notes))
        report = replace(report, notes=(*rules, *report.notes))
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


def _explain(arguments: argparse.Namespace) -> int:
    """Tell what an export would make of a model; return 0 if nothing stands in the way, else 1."""
    # Imported only when it is needed.
    from export.plain.explain import explained, print_explanation

    paths = list(arguments.checkpoint)
    plain = _plain_options(arguments)
    source = _source_of(arguments, paths, paths[0], plain)
    try:
        if ":" in str(paths[0]) and not paths[0].exists():
            model, whole = untrained_model(replace(source, factory=str(paths[0])))
        else:
            model, whole = trained_model(source)
        found = explained(model, _config(arguments, "model", plain), whole)
    except (ValueError, OSError) as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(found.to_json()))
    else:
        print_explanation(found, _report_console())
    return 1 if found.problem else 0


def _config(arguments: argparse.Namespace, name: str, plain: PlainOptions) -> ExportConfig:
    defaults = [text for text in arguments.id_policy if "=" not in text]
    policies = [_assignment(text, "--id-policy") for text in arguments.id_policy if "=" in text]
    plans = [_plan_option(text) for text in arguments.plan]
    features = [_assignment(text, "--features") for text in arguments.features]
    named = [target or "all targets" for target, _ in plans]
    doubled = sorted({target for target in named if named.count(target) > 1})
    if doubled:
        raise ExportError(f"--plan: got more than one for {', '.join(doubled)}, expected one")
    return ExportConfig(
        name=name,
        data_type=ROW_TYPES[arguments.dtype],
        table_data_types={
            name: _one_of(value, ROW_TYPES, "--table-dtype")
            for name, value in (_assignment(text, "--table-dtype") for text in arguments.table_dtype)
        },
        targets=tuple(tuple(text.split(",")) for text in arguments.target or ["cpu"]),
        plan=next((plan for target, plan in plans if target is None), None),
        target_plans={target: plan for target, plan in plans if target is not None},
        device_memory_bytes=arguments.device_memory,
        id_policy=_one_of(defaults[-1], POLICIES, "--id-policy") if defaults else None,
        table_id_policies={name: _one_of(value, POLICIES, "--id-policy") for name, value in policies},
        dense_dtype=arguments.dense_dtype,
        linear_dtype=arguments.linear_dtype,
        auto_bound=arguments.auto_bound,
        auto_data=arguments.auto_data,
        dense_widths={
            name: _whole(value, "--dense-width")
            for name, value in (_assignment(text, "--dense-width") for text in arguments.dense_width)
        },
        features={
            name.removesuffix(FLOAT): tuple(value.replace(EQUAL, ",").split(",")) for name, value in features
        },
        same_lengths=tuple(
            tuple(group.split(EQUAL)) for _, value in features for group in value.split(",") if EQUAL in group
        ),
        float_features=tuple(name.removesuffix(FLOAT) for name, _ in features if name.endswith(FLOAT)),
        defaults=tuple(arguments.default),
        outputs=tuple(name for names in arguments.outputs for name in names),
        context=tuple(name for names in arguments.context for name in names),
        strings=dict(
            _assignment(text, "--strings") if "=" in text else (text, STRING_HASHES[0])
            for text in arguments.strings
        ),
        submodule=arguments.submodule,
        plain=plain,
        batch=arguments.batch,
        samples=arguments.samples,
        accept_unproven=arguments.accept_unproven,
        graph_format=arguments.graph_format,
        single_file=arguments.single_file,
        overwrite=arguments.force,
    )


def _plain_options(arguments: argparse.Namespace) -> PlainOptions:
    """Return what the command's options say of a plain model.

    Raises:
        ExportError: One is wrong, or the file of example inputs cannot be read.
    """
    return PlainOptions(
        method=arguments.method,
        outputs=tuple(name for names in arguments.outputs for name in names),
        inputs=None if arguments.inputs is None else read_inputs(arguments.inputs),
        tables=tuple(name for names in arguments.tables for name in names),
        dense=tuple(name for names in arguments.dense for name in names),
        padding=dict(_assignment(text, "--padding") for text in arguments.padding),
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

    return held_by(model, retrieval_model(model, read_item_vectors(arguments.items, model), arguments.top_k))


def _assignment(text: str, option: str) -> tuple[str, str]:
    name, _, value = text.rpartition("=")
    if not name or not value:
        expected = {
            "--id-policy": "[TABLE=]POLICY",
            "--features": "ARGUMENT=F1,F2+F3",
            "--plan": "[TARGET=]FILE",
            "--strings": "FEATURE[=HASH]",
            "--padding": "FEATURE=SIDE[:ID]",
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


def _name_of(out: Path | None) -> str:
    """Return the name of an artifact without its suffix; empty where the path has none, as a version's folder."""
    name = "" if out is None else out.name
    found = re.fullmatch(r"(.+)\.artifact(\.pt)?", name)
    return found[1] if found else ""


def _named(checkpoint: Path) -> Path:
    """Return the path of a checkpoint in a form that has a name."""
    return checkpoint.resolve() if checkpoint.name in ("", "..") else checkpoint


def _default_out(checkpoint: Path, suffix: str) -> Path:
    """Return the default output path, next to the checkpoint."""
    return checkpoint.with_name(_stem(checkpoint) + suffix)


def _source_of(arguments: argparse.Namespace, paths: list[Path], out: Path, plain: PlainOptions) -> Source:
    """Return the source of a model from the command's options.

    Raises:
        ExportError: The factory's arguments are not a JSON object.
    """
    return Source(
        path=paths[0],
        others=tuple(paths[1:]),
        factory=arguments.factory,
        arguments=read_arguments(arguments.factory_args),
        submodule=arguments.submodule,
        plain=plain,
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
_DELTA_SHARED = {
    "checkpoint",
    "out",
    "force",
    "json",
    "factory",
    "factory_args",
    "inputs",
    "submodule",
    "unsafe_pickle",
}
_DELTA_OWN = ("artifact", "after", "tables_only", "check_all")
_PUSH = ("checkpoint", "push_rows", "rows_over_bytes", "check_rows", "json")
_COMPACT = ("checkpoint", "compact", "out", "force", "json")


def _check_delta_options(arguments: argparse.Namespace) -> None:
    """Check that options of deltas go with ``--delta`` or ``--compact``, and those of artifacts do not.

    Raises:
        ExportError: Names the conflicting options.
    """
    if arguments.push_rows:
        _refuse_options(
            [name for name in sorted(arguments.given) if name not in _PUSH], "none with --push-rows"
        )
        if len(arguments.checkpoint) != 1:
            raise ExportError(
                f"--push-rows: got {len(arguments.checkpoint)} paths, expected one: an artifact or a delta"
            )
        return
    _refuse_options(
        [name for name in arguments.given if name in ("rows_over_bytes", "check_rows")], "--push-rows with it"
    )
    if (arguments.compact or arguments.delta) and isinstance(arguments.out, str):
        raise ExportError(
            f"--out: got {arguments.out!r}, expected a path: a delta is written to a file, then uploaded"
        )
    if arguments.compact:
        _refuse_options(
            [name for name in sorted(arguments.given) if name not in _COMPACT], "none with --compact"
        )
        if arguments.out is None:
            raise ExportError("--out: missing, expected the delta to write")
        return
    given = sorted(arguments.given - {"delta"})
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


def _part_of(artifact: Path, given: str) -> tuple[str, PlainOptions]:
    """Return which part of the model an artifact holds, and what was said of a plain one.

    Raises:
        ArtifactError: The artifact cannot be read.
        ExportError: ``--submodule`` names another part.
    """
    options = read_of_forward(read_manifest(artifact).options)
    made_of: str = options.get("submodule", given)
    if given not in ("", made_of):
        raise ExportError(
            f"--submodule: got {given!r}, expected {made_of!r}, which the artifact was made of, or none"
        )
    plain: PlainOptions = options.get("plain", PlainOptions())
    return made_of, replace(plain, outputs=tuple(options.get("outputs", ())))


def _run_delta(arguments: argparse.Namespace) -> int:
    """Make a delta; return 0 if it was written, 1 if not, 2 for bad usage."""
    old, new = (_named(path) for path in arguments.checkpoint)
    out = arguments.out or _default_out(new, ".delta")
    config = DeltaConfig(
        artifact=arguments.artifact or _default_out(old, ".artifact"),
        after=tuple(arguments.after),
        tables_only=arguments.tables_only,
        check_all=arguments.check_all,
        overwrite=arguments.force,
    )
    try:
        said = _plain_options(arguments)
        sources = [_source_of(arguments, [path], out, said) for path in (old, new)]
    except ExportError as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 2
    try:
        check_replaceable(out, config.overwrite)
        # Fails before anything that takes long.
        part, plain = _part_of(config.artifact, arguments.submodule)
        touched = None if config.check_all else _touched(arguments, old, new, part)
        if touched is not None:
            config = replace(config, touched=touched)
        before, after = (
            load_model(replace(one, submodule=part, plain=replace(plain, inputs=said.inputs)))
            for one in sources
        )
        with _progress_bar() as progress, patch_torchrec_names(before, after):
            report = export_delta(before, after, out, config, progress)
    except (ValueError, OSError) as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-export: interrupted, nothing was written", file=sys.stderr)
        return 1
    return _show_delta(report, arguments)


def _run_push(arguments: argparse.Namespace) -> int:
    """Write rows to nodes, or check them there; return 0 if they hold them, 1 if not."""
    # Imported only when it is needed.
    from export.push import StoreError, checked, pushed

    path, address = arguments.checkpoint[0], arguments.push_rows
    try:
        with _progress_bar() as progress:
            if arguments.check_rows:
                text = checked(path, address, progress, as_json=arguments.json)
            else:
                text = pushed(path, address, arguments.rows_over_bytes, progress, as_json=arguments.json)
    except (ValueError, OSError, StoreError) as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("recsys-export: interrupted; the same command goes on", file=sys.stderr)
        return 1
    print(text)
    return 0


def _run_compact(arguments: argparse.Namespace) -> int:
    """Make one delta of a chain; return 0 if it was written, 1 if not."""
    try:
        report = compact(arguments.checkpoint, arguments.out, overwrite=arguments.force)
    except (ValueError, OSError) as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 1
    return _show_delta(report, arguments)


def _touched(arguments: argparse.Namespace, old: Path, new: Path, part: str) -> dict[str, Tensor] | None:
    """Return the rows that the new checkpoint's training touched, if it started from the old one and says so."""
    if arguments.factory or arguments.unsafe_pickle or not (old.is_file() and new.is_file()):
        return None
    found = touched_since(load_checkpoint(old).info, load_checkpoint(new).info)
    prefix = f"{part}." if part else ""
    if found is None:
        return None
    return {name.removeprefix(prefix): rows for name, rows in found.items() if name.startswith(prefix)}


def _show_delta(report: DeltaReport, arguments: argparse.Namespace) -> int:
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
