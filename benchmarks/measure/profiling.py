"""Profile of an artifact by operator.

Shape letters: B batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure.tables import table_of
from benchmarks.models.dlrm import Request
from recsys.artifact.load import LoadedArtifact

_NUM_WARM_UP_CALLS = 50


@dataclass(frozen=True, kw_only=True)
class OperatorShare:
    """One operator.

    Attributes:
        name: of the operator.
        calls: per forward.
        self_us: its own time per forward, without that of the operators it calls.
        share: of the time of all operators.
    """

    name: str
    calls: float
    self_us: float
    share: float

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


def profile_table(title: str, shares: Sequence[OperatorShare], most: int | None = None) -> Table:
    """Return a profile as a table.

    Args:
        title: stands above it.
        shares: the operators or spans.
        most: how many are listed; None for all. All are in the sum.
    """
    rows = [
        {
            "operator": escape(share.name),
            "calls": f"{share.calls:.0f}",
            "self µs": f"{share.self_us:.1f}",
            "share": f"{share.share:.1%}",
        }
        for share in shares[:most]
    ]
    table = table_of(f"{title}, under the profiler", rows)
    table.add_section()
    table.add_row("all", "", f"{sum(share.self_us for share in shares):.1f}", "")
    return table


def profile_artifact(
    artifact: LoadedArtifact, requests: Sequence[Request], num_calls: int
) -> list[OperatorShare]:
    """Profile ``num_calls`` forwards; the operators, the most expensive first.

    The profiler adds about a microsecond to every operator, so shares of small batches lean towards operators
    that are called often.
    """
    inputs = [(r.dense, r.lengths, r.values) for r in requests]
    for i in range(_NUM_WARM_UP_CALLS):
        artifact.forward(*inputs[i % len(inputs)])
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded:
        for i in range(num_calls):
            artifact.forward(*inputs[i % len(inputs)])
    return shares([e for e in recorded.key_averages() if "::" in e.key], num_calls)


def shares(events: Iterable[Any], num_calls: int) -> list[OperatorShare]:
    """What a profiler recorded over ``num_calls`` calls, the most expensive first."""
    events = [e for e in events if e.self_cpu_time_total > 0]
    total = sum(e.self_cpu_time_total for e in events)
    found = [
        OperatorShare(
            name=e.key,
            calls=e.count / num_calls,
            self_us=e.self_cpu_time_total / num_calls,
            share=e.self_cpu_time_total / total,
        )
        for e in events
    ]
    return sorted(found, key=lambda share: -share.self_us)
