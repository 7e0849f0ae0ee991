"""The report of a plan as one self-contained HTML page.

The page is ``page.html``, a template, with style sheets and ``page.js`` put into it: it needs no other file and no
network. Names are escaped. The data is embedded as JSON in which ``<`` does not occur. The content security policy
permits only the script whose hash it names, so nothing else in the page can run, for any names of tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from recsys.base.table_names import short_names
from recsys.base.terminal import size_text
from recsys.pages import script, source_hash, style, templates
from recsys.planner.evaluate import runs_of
from recsys.planner.planner import PlanResult
from recsys.planner.report.report import headline, time_text
from recsys.planner.report.summary import Summary

_FOLDER = Path(__file__).parent
_TEMPLATES = templates(_FOLDER)


def page(result: PlanResult, summary: Summary, *, title: str) -> str:
    """Render the report of a plan as HTML.

    Args:
        result: The plan.
        summary: The plan's summary.
        title: The title, such as the model's file name.
    """
    code = script(_FOLDER)
    lines = headline(summary)
    return _TEMPLATES.get_template("page.html").render(
        title=title,
        policy=Markup(f"default-src 'none'; style-src 'unsafe-inline'; script-src {source_hash(code)}"),
        style=style(_FOLDER),
        script=code,
        data=htmlsafe_json_dumps(_page_data(result, summary), separators=(",", ":")),
        headline=lines[0],
        warning=lines[-1] if summary.over_capacity else "",
        is_training=summary.is_training,
        latency=time_text(summary.latency_us) if summary.latency_us else "",
        tiles=_tiles(summary),
        memories=_memories(summary),
    )


def _page_data(result: PlanResult, summary: Summary) -> dict[str, Any]:
    """Return the summary as JSON data, with each table's shards grouped by size and cost."""
    data = summary.to_json()
    by_table: list[dict[tuple[int, float, int, int], list[int]]] = [{} for _ in summary.tables]
    for shard in result.evaluation.shards:
        num_bytes = shard.cost.hbm_bytes + shard.cost.ddr_bytes
        group = (num_bytes, round(shard.cost.total_us, 3), shard.num_rows, shard.num_columns)
        by_table[shard.table].setdefault(group, []).append(shard.rank)
    names = short_names(table.name for table in summary.tables)
    for table, groups in zip(data["tables"], by_table, strict=True):
        table["label"] = names[table["name"]]
        table["shards"] = [
            {
                "ranks": runs_of(ranks),
                "bytes": group[0],
                "us": group[1],
                "rows": group[2],
                "columns": group[3],
            }
            for group, ranks in groups.items()
        ]
    return data


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    """Return the value and the label of each tile."""
    tables = summary.tables
    above = summary.worst_us / summary.least_us - 1 if summary.least_us > 0 else None
    hbm, ddr = (sum(getattr(t, name) for t in tables) for name in ("hbm_bytes", "ddr_bytes"))
    tiles = [
        (time_text(summary.worst_us), f"worst rank: {summary.worst_rank}"),
        (time_text(summary.mean_us), "mean of the ranks"),
        (f"{summary.imbalance:.3f}", "imbalance: worst over mean"),
        ("unknown" if above is None else f"≤ {above:.1%}", "above the best plan"),
        (f"{len(tables):,}", f"tables in {sum(t.num_shards for t in tables):,} shards"),
        (f"{summary.world_size}", f"{summary.compute_device} ranks, {summary.local_world_size} per host"),
    ]
    if hbm:
        tiles.append((size_text(hbm), "device memory in total"))
    if ddr:
        tiles.append((size_text(ddr), "host memory in total"))
    return tiles


def _memories(summary: Summary) -> list[dict[str, str]]:
    """Return the template's data for each kind of memory that the plan uses."""
    kinds = []
    if summary.hbm_capacity_bytes:
        kinds.append(("hbm", "Device memory", summary.hbm_capacity_bytes))
    if any(rank.ddr_bytes for rank in summary.ranks):
        kinds.append(("ddr", "Host memory", summary.ddr_capacity_bytes))
    return [
        {
            "id": kind,
            "name": name,
            "capacity": size_text(capacity),
            "fill": f"{max(getattr(rank, f'{kind}_bytes') for rank in summary.ranks) / max(capacity, 1):.1%}",
        }
        for kind, name, capacity in kinds
    ]
