"""Progress of reading, on stderr where that is a terminal, once it takes longer than a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.errors import LiveError
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_SHOWN_AFTER_S = 1.0
#: Takes what is done, 0 to 1, and a text such as a number of rows.
Update = Callable[[float, str], None]


@contextmanager
def shown(
    title: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Update]:
    """Show a bar while the context lasts, which ends with it.

    Nothing is shown beside another bar, nor by other ranks than the first.

    Args:
        title: What is done, such as ``reading``.
        console: Where; None for stderr.
        clock: Returns seconds.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal or os.environ.get("RANK", "0") != "0":
        yield lambda _, __: None
        return
    bar = Progress(
        TextColumn("{task.description} {task.fields[text]}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(title, total=1.0, text="")
    started = clock()
    state = "waiting"

    def update(done: float, text: str) -> None:
        nonlocal state
        if state == "waiting" and clock() - started > _SHOWN_AFTER_S:
            try:
                bar.start()
                state = "shown"
            except LiveError:
                state = "beside another bar"
        bar.update(task, completed=done, text=text)

    try:
        yield update
    finally:
        if state == "shown":
            bar.stop()
