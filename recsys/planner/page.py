"""The report of a plan as one HTML page: no other files, no network, names as text only.

The data lies in the page as JSON in which ``<`` does not occur. The page's policy allows the one script whose hash
it names, so that nothing else in the page can run, whatever tables are called.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Any

from recsys.planner.page_script import SCRIPT
from recsys.planner.page_style import STYLE
from recsys.planner.planner import PlanResult
from recsys.planner.report import headline, short_names, time_text
from recsys.planner.summary import Summary
from recsys.terminal import size_text


def page(result: PlanResult, summary: Summary, *, title: str) -> str:
    """The page.

    Args:
        result: the plan.
        summary: of it.
        title: what was planned, such as the model's file name.
    """
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    lines = headline(summary)
    uses_ddr = any(rank.ddr_bytes for rank in summary.ranks)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sharding plan of {escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Sharding plan of {escape(title)}</h1>
<p>{escape(lines[0])}</p>
{_warning(summary, lines)}
<div class="tiles">{_tiles(summary)}</div>
<section>
<h2>Cost of a step, rank by rank</h2>
<p>What the rank's shards cost; the slowest rank sets the pace. {escape(_latency(summary))}</p>
<div class="legend">
<span><i style="background:var(--input)"></i>IDs in</span>
<span><i style="background:var(--forward)"></i>forward: rows read</span>
<span><i style="background:var(--output)"></i>outputs{" and their gradients" if summary.is_training else ""}</span>
{'<span><i style="background:var(--backward)"></i>backward: rows updated</span>' if summary.is_training else ""}
</div>
<svg id="cost" role="img" aria-label="cost of each rank"></svg>
</section>
{_memory_section("hbm", "Device memory", summary) if summary.hbm_capacity_bytes else ""}
{_memory_section("ddr", "Host memory", summary) if uses_ddr else ""}
<section>
<h2>What lies where</h2>
<p>A line for each table, a column for each rank; the color is the sharding type, and the stronger its shade,
the more the shard takes. Lines between columns are the borders of hosts. Point at a cell to see what it is.</p>
<div class="tools">
<input type="search" id="filter" placeholder="filter tables by name" aria-label="filter tables by name">
<select id="type" aria-label="sharding type"><option value="">all sharding types</option></select>
<select id="kernel" aria-label="kernel"><option value="">all kernels</option></select>
<select id="shade" aria-label="shade by"><option value="bytes">shade: bytes</option>
<option value="us">shade: cost</option></select>
<select id="order" aria-label="order"><option value="cost_us">order: cost</option>
<option value="hbm_bytes">order: device bytes</option><option value="ddr_bytes">order: host bytes</option>
<option value="num_embeddings">order: rows</option><option value="ranks">order: first rank</option>
<option value="name">order: name</option></select>
<span id="count"></span>
</div>
<div class="legend" id="types"></div>
<canvas id="matrix-head" aria-hidden="true"></canvas>
<div class="scroll">
<canvas id="matrix" role="img" aria-label="tables by ranks; the list below says the same"></canvas></div>
</section>
<section>
<h2>Tables</h2>
<p>Bytes and cost are sums over the ranks. A heading sorts; the filters above apply here too.</p>
<div class="scroll"><table><thead><tr id="head"></tr></thead><tbody id="rows"></tbody></table></div>
</section>
<noscript><section class="warning">The charts and the list need JavaScript.</section></noscript>
</main>
<div id="tip" role="status"></div>
<script type="application/json" id="data">{_embedded(_page_data(result, summary))}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _embedded(data: Any) -> str:
    """JSON that cannot end its element or open another one."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page_data(result: PlanResult, summary: Summary) -> dict[str, Any]:
    data = summary.to_json()
    by_table: list[dict[tuple[int, float, int, int], list[int]]] = [{} for _ in summary.tables]
    for shard in result.evaluation.shards:
        num_bytes = shard.cost.hbm_bytes + shard.cost.ddr_bytes
        alike = (num_bytes, round(shard.cost.total_us, 3), shard.num_rows, shard.num_columns)
        by_table[shard.table].setdefault(alike, []).append(shard.rank)
    names = short_names(summary)
    for table, groups in zip(data["tables"], by_table, strict=True):
        table["label"] = names[table["name"]]
        table["shards"] = [
            {"ranks": _runs(ranks), "bytes": alike[0], "us": alike[1], "rows": alike[2], "columns": alike[3]}
            for alike, ranks in groups.items()
        ]
    return data


def _runs(ranks: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def _warning(summary: Summary, lines: list[str]) -> str:
    return f'<section class="warning">{escape(lines[-1])}</section>' if summary.over_capacity else ""


def _latency(summary: Summary) -> str:
    return (
        f"Collective calls add {time_text(summary.latency_us)} on every rank." if summary.latency_us else ""
    )


def _tiles(summary: Summary) -> str:
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
        tiles.append((size_text(hbm), "of device memory in all"))
    if ddr:
        tiles.append((size_text(ddr), "of host memory in all"))
    return "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for value, label in tiles
    )


def _memory_section(kind: str, name: str, summary: Summary) -> str:
    capacity = summary.hbm_capacity_bytes if kind == "hbm" else summary.ddr_capacity_bytes
    fill = max(getattr(rank, f"{kind}_bytes") for rank in summary.ranks) / max(capacity, 1)
    return f"""<section>
<h2>{name}, rank by rank</h2>
<p>Tables may take {size_text(capacity)} of each rank; the fullest rank is at {fill:.1%}.</p>
<svg id="{kind}" role="img" aria-label="{name.lower()} of each rank"></svg>
</section>"""
