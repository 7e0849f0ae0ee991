"""Texts and cells that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Sequence

from recsys.base.terminal import size_text
from serve.profiler.limits import Limits
from serve.profiler.result import CONTEXTS, ONCE, OperatorRow, Profile, linear_layers, lookups

_MIN_SHARE = 0.0005


def time_text(us: float) -> str:
    """Format microseconds with three digits or more."""
    if us >= 100:
        return f"{us:,.0f}"
    return f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def rate_text(per_s: float) -> str:
    """Format a number of rows a second."""
    return f"{per_s / 1e6:.1f} M rows/s" if per_s >= 1e6 else f"{per_s:,.0f} rows/s"


def flops_text(flops: float) -> str:
    """Format additions and multiplications."""
    for unit, size in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if flops >= size:
            return f"{flops / size:.3g} {unit}"
    return f"{flops:.0f} FLOP"


def needs_text(row: OperatorRow) -> str:
    """Return the least that an operator has to do; empty if that is not known."""
    parts = [f"{row.rows:,.0f} rows"] if row.rows else []
    if row.flops:
        parts.append(f"{flops_text(row.flops)} {row.dtype}")
    elif row.bytes:
        parts.append(size_text(row.bytes))
    return ", ".join(parts)


def reached_text(row: OperatorRow, limits: Limits) -> str:
    """Return how fast an operator is, and the limit; empty if it is not known."""
    if row.least_us is None or not row.us:
        return ""
    if row.rows and row.flops:
        return f"{time_text(row.us)} µs, {time_text(row.least_us)} at the limits"
    if row.rows:
        return f"{row.rows / row.us:.1f} of {row.rows / row.least_us:.1f} M rows/s"
    if row.flops and row.flops / limits.flops[row.dtype] >= row.bytes / limits.cached_bytes_per_s:
        return f"{row.flops / row.us / 1e3:.0f} of {row.flops / row.least_us / 1e3:.0f} GFLOPS"
    return f"{row.bytes / row.us / 1e3:.1f} of {row.bytes / row.least_us / 1e3:.1f} GB/s"


def percent(share: float | None) -> str:
    """Format a share; empty for None."""
    return "" if share is None else f"{share:.0%}"


def shown(rows: Sequence[OperatorRow]) -> list[OperatorRow]:
    """Return the rows that take time."""
    return [row for row in rows if row.share >= _MIN_SHARE]


def what(profile: Profile) -> str:
    """Return what the time is that of: ``steps`` or ``operators``."""
    return "operators" if profile.about["program"] is None else "steps"


def headline(profile: Profile) -> str:
    """Return the profile in one line."""
    text = f"{profile.rows_per_s:,.0f} rows/s on one thread"
    for name, row in (
        ("lookups", lookups(profile.operators)),
        ("linear layers", linear_layers(profile.operators)),
    ):
        if row is not None:
            reach = "" if row.of_limit is None else f", at {row.of_limit:.0%} of the limit"
            text += f"; {name} {row.share:.0%} of the time{reach}"
    once_us = profile.spaces_us.get(CONTEXTS)
    if once_us is not None:
        text += f"; {time_text(once_us)} of {time_text(profile.us)} µs {ONCE}"
    return text


def about(profile: Profile) -> list[str]:
    """Return the artifact, the batches and the machine, a line each."""
    facts, settings = profile.about, profile.settings
    tables = f"{facts['num_tables']} tables, {size_text(facts['table_bytes'])} {facts['rows']}"
    program = facts["program"]
    if program is None:
        graph = "operators of torch and FBGEMM"
    else:
        steps = ", ".join(f"{count} × {kind}" for kind, count in program.items())
        graph = f"program ({facts['instructions']}): {steps or 'no steps'}"
    each = settings["ids_per_bag"]
    bags = f"{each} ID{'' if each == '1' else 's'} a bag" if each[0].isdigit() else f"bags {each}"
    ids = f"{bags}, {'IDs by Zipf {:g}'.format(settings['zipf']) if settings['zipf'] else 'uniform IDs'}"
    if settings["samples"]:
        ids = "rows of the samples"
    kind = "one context with its candidates each; " if settings["ranking"] else ""
    mix = ", ".join(f"{share:.0%} of {size}" for size, share in profile.mix.items() if share)
    machine = profile.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return [
        f"{profile.artifact} {facts['digest']}, target {facts['target']}, linear layers in {facts['linear_dtype']}; "
        f"{tables}",
        f"{graph}; batches: {mix}; {kind}{ids}",
        f"{machine['cpu']}, {machine['num_cores']} cores, one thread, load {machine['load_average'][0]}; {versions}",
    ]


def limit_rows(profile: Profile) -> list[list[str]]:
    """Return the machine's limits: name, value and how it was measured."""
    limits = profile.limits
    found = []
    for name, gather in (
        ("rows gathered, as loaded", limits.gather),
        ("rows gathered, huge pages", limits.gather_huge_pages),
    ):
        if gather is not None:
            sizes = profile.about["row_bytes"]
            text = f"random rows of {' or '.join(map(str, sizes[:4]))} bytes from all tables"
            found.append([name, rate_text(gather.rows_per_s), f"{size_text(gather.bytes_per_s)}/s", text])
    found.append(["memory read", "", f"{size_text(limits.read_bytes_per_s)}/s", "from end to end"])
    found.append(
        [
            "caches read",
            "",
            f"{size_text(limits.cached_bytes_per_s)}/s",
            f"{size_text(limits.cached_bytes)}, as the dense weights, over and over",
        ]
    )
    for dtype, flops in limits.flops.items():
        found.append(
            [
                f"products in {dtype}",
                f"{flops / 1e9:.0f} GFLOPS",
                "",
                "the best of torch's and the native kernels'",
            ]
        )
    return found
