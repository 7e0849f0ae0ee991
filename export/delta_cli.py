"""``recsys-export --delta``: what changed between two checkpoints, for an artifact of the first."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from export.cli_parts import default_out, named, progress_bar, report_console, source_of
from export.delta import DeltaConfig, check_replaceable, export_delta
from export.delta_report import print_delta
from export.source import load_model
from recsys.artifact import read_manifest
from recsys.errors import ExportError

# Of the command's options those that a delta takes too.
_SHARED = {"checkpoint", "out", "force", "json", "model", "model_args", "unsafe_pickle"}
_OWN = ("artifact", "after", "tables_only")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of deltas."""
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
        help="where dense weights differ too, leave them as they are instead of refusing",
    )


def check_options(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Options of deltas go with ``--delta``, and those of artifacts do not.

    Raises:
        ExportError: names those that do not go.
    """
    given = [
        name
        for name in vars(arguments)
        if getattr(arguments, name) != parser.get_default(name) and name != "delta"
    ]
    if not arguments.delta:
        _refuse([name for name in given if name in _OWN], "--delta with it")
        return
    _refuse(
        [name for name in given if name not in (*_SHARED, *_OWN)],
        "none with --delta: the artifact decides it",
    )
    if len(arguments.checkpoint) != 2:
        raise ExportError(f"--delta: got {len(arguments.checkpoint)} checkpoints, expected two: OLD NEW")


def _refuse(names: Sequence[str], expected: str) -> None:
    if names:
        raise ExportError(f"--{names[0].replace('_', '-')}: got it, expected {expected}")


def run(arguments: argparse.Namespace) -> int:
    """Make a delta; 0 when it is written, 1 when it is not, 2 for bad usage."""
    old, new = (named(path) for path in arguments.checkpoint)
    out = arguments.out or default_out(new, ".delta")
    config = DeltaConfig(
        artifact=arguments.artifact or default_out(old, ".artifact"),
        after=tuple(arguments.after),
        tables_only=arguments.tables_only,
        overwrite=arguments.force,
    )
    try:
        sources = [source_of(arguments, [path], out) for path in (old, new)]
    except ExportError as error:
        print(f"recsys-export: {error}", file=sys.stderr)
        return 2
    try:
        check_replaceable(out, config.overwrite)
        read_manifest(config.artifact)  # before anything that takes long
        before, after = (load_model(source) for source in sources)
        with progress_bar() as progress:
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
        print_delta(report, report_console())
    return 0
