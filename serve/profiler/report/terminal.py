"""The profile on a terminal."""

from __future__ import annotations

from rich.console import Console, ConsoleRenderable
from rich.text import Text

from recsys.base.terminal import whole_table
from serve.profiler.report.texts import (
    about,
    headline,
    limit_rows,
    needs_text,
    percent,
    reached_text,
    shown,
    time_text,
    what,
)
from serve.profiler.result import CONTEXTS, ONCE, Profile, linear_layers, lookups

_WIDTH = 130


def print_profile(profile: Profile) -> None:
    """Print tables of limits, sizes and operators, and what to change."""
    console = Console()
    console = Console(width=max(console.width, _WIDTH)) if not console.is_terminal else console
    for line in about(profile):
        console.print(Text(line), soft_wrap=True)
    headings: tuple[str, ...] = ("limit of one thread", "rate", "bytes", "how")
    console.print(whole_table("limits", headings, limit_rows(profile), left=(0, 3)))
    sizes = []
    for size in profile.sizes:
        reach = [
            "" if row is None else percent(row.of_limit)
            for row in (lookups(size.operators), linear_layers(size.operators))
        ]
        share = profile.mix.get(size.batch_size, 0.0)
        cells = [
            f"{size.batch_size}",
            f"{share:.0%}",
            time_text(size.us),
            time_text(size.us / size.batch_size),
        ]
        once = [time_text(size.spaces_us[CONTEXTS])] if size.spaces_us else []
        sizes.append([*cells, *once, f"{size.rows_per_s:,.0f}", *reach])
    headings = (
        *("batch", "mix", "µs", "µs a row", *([f"µs {ONCE}"] if profile.spaces_us else [])),
        *("rows/s", "lookups: of limit", "linear: of limit"),
    )
    console.print(whole_table("batch sizes", headings, sizes, left=()))
    console.print(_operators(f"{what(profile)}, in the mean batch of the mix", profile))
    console.print(Text(headline(profile), style="bold"), soft_wrap=True)
    for hint in profile.hints:
        saved = f" (saves up to {hint.saved:.0%})" if hint.saved else ""
        console.print(Text(f"→ {hint.text}{saved}"), soft_wrap=True)
    for note in profile.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _operators(title: str, profile: Profile) -> ConsoleRenderable:
    rows = [
        [
            row.title,
            f"{row.calls:.0f}" if row.calls else "",
            time_text(row.us),
            f"{row.share:.1%}",
            needs_text(row),
            reached_text(row, profile.limits),
            percent(row.of_limit),
        ]
        for row in shown(profile.operators)
    ]
    headings_of_rows = (
        what(profile).removesuffix("s"),
        "calls",
        "µs",
        "share",
        "needs at least",
        "reaches",
        "of limit",
    )
    return whole_table(title, headings_of_rows, rows, left=(0,))
