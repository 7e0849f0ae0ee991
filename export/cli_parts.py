"""What the forms of the command share: default names, progress, the width of reports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from export.job import Progress as OnProgress
from export.source import Source, read_arguments

# Columns of a report that goes into a pipe or a file, where there is no terminal to ask.
_PIPE_WIDTH = 110


def stem(checkpoint: Path) -> str:
    """A checkpoint's name without what says that it is one."""
    if checkpoint.is_dir():
        return checkpoint.name or "model"
    return checkpoint.name.removesuffix(".pt").removesuffix(".pth") or "model"


def named(checkpoint: Path) -> Path:
    """The path of a checkpoint in a form that has a name."""
    return checkpoint.resolve() if checkpoint.name in ("", "..") else checkpoint


def default_out(checkpoint: Path, suffix: str) -> Path:
    """What is written beside a checkpoint where no name is given."""
    return checkpoint.with_name(stem(checkpoint) + suffix)


def source_of(arguments: argparse.Namespace, paths: list[Path], out: Path) -> Source:
    """Where a model comes from, as the command's options say.

    Raises:
        ExportError: the factory's arguments are no JSON object.
    """
    return Source(
        path=paths[0],
        others=tuple(paths[1:]),
        factory=arguments.model,
        arguments=read_arguments(arguments.model_args),
        unsafe_pickle=arguments.unsafe_pickle,
        scratch=out.absolute().parent,
    )


def report_console() -> Console:
    """Where reports go: stdout, wide enough for tables where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """Progress on stderr, where that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def show(step: str, done: int, total: int) -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(step, total=total)
            bar.update(tasks[step], completed=done, total=total)

        yield show
