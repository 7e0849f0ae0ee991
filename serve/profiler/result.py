"""The profile of an artifact, as plain data, and its means over a mix of batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from serve.profiler.limits import Limits
from serve.profiler.operators import OperatorTime
from serve.profiler.work import LINEAR, LOOKUPS

#: The rows of time that is no operator's.
CALL, BETWEEN = "call from Python", "between operators"
#: What steps of ranking batches run for, and how tables name the first.
CONTEXTS, ROWS = "contexts", "rows"
ONCE = "once a context"
_SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """An operator, or a step of a program, with one label, in a batch of one size or in the mean batch of a mix.

    Attributes:
        name: The operator, or what the time went into instead.
        label: What tells its calls apart; empty if nothing does.
        space: ``contexts`` if it runs once for each context of a ranking batch, ``rows`` for what else runs in one;
            empty where that is not known.
        calls: Calls in a batch.
        us: Its processor time in a batch.
        share: Its share of the batch's time.
        rows: Stored rows that it reads.
        flops: Additions and multiplications that it needs.
        dtype: The type of their factors.
        bytes: Bytes that it reads at least, besides rows.
        least_us: The time that the machine's limits leave for that; None if it needs nothing that is known.
    """

    name: str
    label: str = ""
    space: str = ""
    calls: float = 0.0
    us: float
    share: float
    rows: float = 0.0
    flops: float = 0.0
    dtype: str = ""
    bytes: float = 0.0
    least_us: float | None = None

    @property
    def of_limit(self) -> float | None:
        """The share of the machine's limit that it reaches; None if it is not known."""
        return None if self.least_us is None or not self.us else self.least_us / self.us

    @property
    def title(self) -> str:
        """Name and label, and whether it runs once for each context."""
        label = ", ".join(part for part in (self.label, ONCE if self.space == CONTEXTS else "") if part)
        return f"{self.name}  {label}" if label else self.name

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "of_limit": self.of_limit}


@dataclass(frozen=True, kw_only=True)
class SizeProfile:
    """The profile of one batch size.

    Attributes:
        batch_size: Rows of a batch.
        us: Processor time of a batch.
        table_rows: Stored rows that a batch reads.
        table_bytes: Their bytes.
        gather_rows_per_s: How fast one thread can read these very rows; None without any.
        operators: The most expensive first; then what is no operator's.
    """

    batch_size: int
    us: float
    table_rows: float
    table_bytes: float
    gather_rows_per_s: float | None
    operators: tuple[OperatorRow, ...]

    @property
    def rows_per_s(self) -> float:
        """Rows of batches that one thread answers in a second."""
        return 1e6 * self.batch_size / self.us

    @property
    def spaces_us(self) -> dict[str, float]:
        """Time of what runs once for each context, and of what runs for rows; empty where that is not known."""
        return spaces_us(self.operators)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        operators = [row.to_json() for row in self.operators]
        more = {"rows_per_s": self.rows_per_s, "spaces_us": self.spaces_us, "operators": operators}
        return {**asdict(self), **more}


@dataclass(frozen=True, kw_only=True)
class Hint:
    """What to change.

    Attributes:
        text: The advice.
        saved: The share of the mix's time that it may save at most; None if that is not known.
    """

    text: str
    saved: float | None = None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was measured.

    Attributes:
        artifact: The artifact's name.
        about: The artifact, and how it was loaded.
        settings: What was asked for.
        machine: The machine and its versions.
        limits: What one thread can do.
        mix: The share of batches of each size; the sum is 1.
        sizes: By batch size, ascending.
        hints: What to change, the most rewarding first.
        notes: What to keep in mind.
    """

    artifact: str
    about: Mapping[str, Any]
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    limits: Limits
    mix: Mapping[int, float]
    sizes: tuple[SizeProfile, ...]
    hints: tuple[Hint, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def us(self) -> float:
        """Time of the mean batch."""
        return sum(self.mix.get(size.batch_size, 0.0) * size.us for size in self.sizes)

    @property
    def rows_per_s(self) -> float:
        """Rows that one thread answers in a second."""
        rows = sum(share * size for size, share in self.mix.items())
        return 1e6 * rows / self.us

    @property
    def operators(self) -> tuple[OperatorRow, ...]:
        """The operators of the mean batch, as those of a size."""
        return mixed(self.sizes, self.mix)

    @property
    def spaces_us(self) -> dict[str, float]:
        """Time of the mean batch by space; empty where it is not known."""
        return spaces_us(self.operators)

    def share_of(self, names: Sequence[str]) -> float:
        """Return the share of the mix's time of some operators."""
        return sum(row.share for row in self.operators if row.name in names)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "schema": _SCHEMA,
            "artifact": self.artifact,
            "about": dict(self.about),
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "limits": self.limits.to_json(),
            "mix": {
                "shares": {str(size): share for size, share in self.mix.items()},
                "us": self.us,
                "rows_per_s": self.rows_per_s,
                "spaces_us": self.spaces_us,
                "operators": [row.to_json() for row in self.operators],
            },
            "sizes": [size.to_json() for size in self.sizes],
            "hints": [asdict(hint) for hint in self.hints],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The times of a batch.

    Attributes:
        call_us: Of a call without the profiler.
        python_us: Of calling a graph that does nothing from Python.
        operators: Of the operators.
    """

    call_us: float
    python_us: float
    operators: Sequence[OperatorTime]


def size_profile(
    batch_size: int, measured: Measured, reads: tuple[float, float, float | None], limits: Limits
) -> SizeProfile:
    """Return the profile of one batch size.

    Operators that take longer while they are timed than a whole batch without it are scaled to that.

    Args:
        batch_size: Rows of a batch.
        measured: The times of a batch.
        reads: Stored rows of a batch, their bytes, and how many can be read in a second.
        limits: What one thread can do.
    """
    call_us = measured.call_us
    recorded_us = sum(each.us for each in measured.operators)
    scale = min(call_us / recorded_us, 1.0) if recorded_us else 1.0
    outside_us = max(call_us - recorded_us, 0.0)
    python_us = min(measured.python_us, outside_us)
    rows = [
        OperatorRow(
            name=each.name,
            label=each.label,
            space=each.space,
            calls=each.calls,
            us=scale * each.us,
            share=scale * each.us / call_us,
            rows=each.work.num_rows,
            flops=each.work.flops,
            dtype=each.work.dtype,
            bytes=each.work.num_bytes,
            least_us=each.work.least_us(limits, reads[2]),
        )
        for each in measured.operators
    ]
    for name, us in ((BETWEEN, outside_us - python_us), (CALL, python_us)):
        rows.append(OperatorRow(name=name, us=us, share=us / call_us))
    return SizeProfile(
        batch_size=batch_size,
        us=call_us,
        table_rows=reads[0],
        table_bytes=reads[1],
        gather_rows_per_s=reads[2],
        operators=tuple(rows),
    )


def mixed(sizes: Sequence[SizeProfile], mix: Mapping[int, float]) -> tuple[OperatorRow, ...]:
    """Return the operators of the mean batch, the most expensive first; then what is no operator's.

    Args:
        sizes: The profiles of all sizes in the mix.
        mix: The share of batches of each size.
    """
    total_us = sum(mix.get(size.batch_size, 0.0) * size.us for size in sizes)
    found: dict[tuple[str, str, str], OperatorRow] = {}
    for size in sizes:
        share = mix.get(size.batch_size, 0.0)
        for row in size.operators if share else ():
            key = (row.name, row.label, row.space)
            old = found.get(key) or replace(
                row, calls=0, us=0, share=0, rows=0, flops=0, bytes=0, least_us=None
            )
            least_us = None
            if row.least_us is not None or old.least_us is not None:
                least_us = (old.least_us or 0.0) + share * (row.least_us or 0.0)
            found[key] = replace(
                old,
                calls=old.calls + share * row.calls,
                us=old.us + share * row.us,
                share=old.share + share * size.us * row.share / total_us,
                rows=old.rows + share * row.rows,
                flops=old.flops + share * row.flops,
                dtype=row.dtype or old.dtype,
                bytes=old.bytes + share * row.bytes,
                least_us=least_us,
            )
    return tuple(sorted(found.values(), key=lambda row: (row.name in (BETWEEN, CALL), -row.us)))


def spaces_us(rows: Sequence[OperatorRow]) -> dict[str, float]:
    """Return the time by space of some operators; empty where it is not known."""
    if not any(row.space for row in rows):
        return {}
    return {space: sum(row.us for row in rows if row.space == space) for space in (CONTEXTS, ROWS)}


def of_kind(rows: Sequence[OperatorRow], names: Sequence[str]) -> OperatorRow | None:
    """Return the sum of some operators' rows; None if there are none. What is not known of one counts as 0."""
    chosen = [row for row in rows if row.name in names]
    if not chosen:
        return None
    least = [row.least_us for row in chosen if row.least_us is not None]
    return OperatorRow(
        name=chosen[0].name,
        calls=sum(row.calls for row in chosen),
        us=sum(row.us for row in chosen),
        share=sum(row.share for row in chosen),
        rows=sum(row.rows for row in chosen),
        flops=sum(row.flops for row in chosen),
        dtype=chosen[0].dtype,
        bytes=sum(row.bytes for row in chosen),
        least_us=sum(least) if least else None,
    )


def lookups(rows: Sequence[OperatorRow]) -> OperatorRow | None:
    """Return the sum of all lookups."""
    return of_kind(rows, LOOKUPS)


def linear_layers(rows: Sequence[OperatorRow]) -> OperatorRow | None:
    """Return the sum of all linear layers."""
    return of_kind(rows, LINEAR)
