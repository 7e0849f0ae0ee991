"""The report of a plan on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleRenderable
from rich.text import Text

from recsys.base.table_names import short_names
from recsys.base.terminal import size_text, whole_table
from recsys.planner.evaluate import ranks_text
from recsys.planner.report.summary import RankSummary, Summary, TableSummary

_MOST_TABLES = 100
_SHOWN_TABLES = 40
_MOST_RANKS = 64
_BAR_CELLS = 24


def print_summary(summary: Summary, console: Console) -> None:
    """Print tables, ranks with bars, and the balance; names are never interpreted as markup."""
    console.print(_tables(summary))
    console.print(_ranks(summary))
    for line in headline(summary):
        console.print(Text(line))


def headline(summary: Summary) -> list[str]:
    """Return the plan in a few lines."""
    what = f"training, {summary.optimizer}" if summary.is_training else "inference"
    hosts = summary.world_size // summary.local_world_size
    lines = [
        f"{len(summary.tables)} tables on {summary.world_size} {summary.compute_device} ranks "
        f"({hosts} host{'s' if hosts > 1 else ''}); {what}",
        f"worst rank {summary.worst_rank}: {time_text(summary.worst_us)}; mean {time_text(summary.mean_us)}; "
        f"imbalance {summary.imbalance:.3f}; collective calls {time_text(summary.latency_us)} more on every rank",
    ]
    if summary.least_us > 0:
        above = summary.worst_us / summary.least_us - 1
        lines.append(
            f"no plan costs less than {time_text(summary.least_us)}: this one is at most {above:.1%} above the best"
        )
    if summary.over_capacity:
        lines.append(
            f"does NOT fit: ranks {ranks_text(summary.over_capacity)} are asked for more memory than they have"
        )
    return lines


def _tables(summary: Summary) -> ConsoleRenderable:
    tables = summary.tables
    title = "tables"
    if len(tables) > _MOST_TABLES:
        tables = sorted(tables, key=lambda t: -t.cost_us)[:_SHOWN_TABLES]
        title = f"the {_SHOWN_TABLES} costliest of {len(summary.tables)} tables (the page shows all)"
    headings = ("table", "rows", "dim", "data", "sharding", "kernel", "shards", "ranks", "HBM", "DDR", "cost")
    names = short_names(table.name for table in summary.tables)
    rows = [_row(table, names[table.name]) for table in tables]
    return whole_table(title, headings, rows, left=(0, 3, 4, 5, 7))


def _row(table: TableSummary, name: str) -> tuple[str, ...]:
    return (
        name,
        f"{table.num_embeddings:,}",
        str(table.embedding_dim),
        table.data_type,
        table.sharding_type,
        table.compute_kernel,
        str(table.num_shards),
        ranks_text(table.ranks),
        size_text(table.hbm_bytes),
        size_text(table.ddr_bytes),
        time_text(table.cost_us),
    )


def _ranks(summary: Summary) -> ConsoleRenderable:
    ranks: Sequence[RankSummary] = summary.ranks
    title = "ranks"
    if len(ranks) > _MOST_RANKS:
        by_cost = sorted(ranks, key=lambda r: -r.cost_us)
        ranks = [*by_cost[:8], *by_cost[-8:]]
        title = f"the 8 busiest and the 8 idlest of {len(summary.ranks)} ranks (the page shows all)"
    on_host = summary.hbm_capacity_bytes == 0
    capacity = summary.ddr_capacity_bytes if on_host else summary.hbm_capacity_bytes
    rows = [
        (
            str(rank.rank),
            str(rank.num_shards),
            f"{bar_text(rank.ddr_bytes if on_host else rank.hbm_bytes, capacity)} "
            + size_text(rank.ddr_bytes if on_host else rank.hbm_bytes),
            "" if on_host or not rank.ddr_bytes else size_text(rank.ddr_bytes),
            f"{bar_text(rank.cost_us, summary.worst_us)} {time_text(rank.cost_us)}",
        )
        for rank in ranks
    ]
    memory = f"{'DDR' if on_host else 'HBM'} of {size_text(capacity)}"
    return whole_table(title, ("rank", "shards", memory, "" if on_host else "DDR", "cost"), rows, left=(2, 4))


def bar_text(value: float, whole: float) -> str:
    """Return a bar of fixed width; values above the whole are marked."""
    part = value / whole if whole > 0 else 0.0
    filled = min(round(part * _BAR_CELLS), _BAR_CELLS)
    return "█" * filled + "·" * (_BAR_CELLS - filled) + ("!" if part > 1 else " ")


def time_text(time_us: float) -> str:
    """Format a time in microseconds, or in milliseconds from 1 000 µs on."""
    return f"{time_us:.1f} µs" if time_us < 1000 else f"{time_us / 1000:.2f} ms"
