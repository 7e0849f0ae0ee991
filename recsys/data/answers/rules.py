"""How labels meet requests, and what became of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

#: What a row without a label is; which of several labels of a row counts.
MISSING = ("negative", "drop")
DOUBLED = ("first", "last", "any")


@dataclass(frozen=True, kw_only=True)
class JoinRules:
    """How labels meet requests.

    Attributes:
        within_s: How long after its answer a request's labels come.
        missing: What a row without a label is: one of ``MISSING``.
        doubled: Which of a row's labels is used: one of ``DOUBLED``.
        labels: Columns of labels; empty for all that are nothing else.
        label_time: The column of their times; empty for ``time`` if there is one.
        candidate: The sparse input, and column, by whose ID labels name a request's row; empty for none.
        model: The model whose requests are read; empty for the only one.
        version: Its version; empty for all.
        until_us: The end of the log in microseconds since 1970; None for the latest answer.
        memory_bytes: What labels and request IDs may take.
    """

    within_s: float
    missing: str = "negative"
    doubled: str = "first"
    labels: tuple[str, ...] = ()
    label_time: str = ""
    candidate: str = ""
    model: str = ""
    version: str = ""
    until_us: int | None = None
    memory_bytes: int = 1 << 30


@dataclass(kw_only=True)
class JoinCounts:
    """What became of requests and labels.

    Attributes:
        files: Files of the log.
        passes: How often the log was read.
        requests: Requests of the log.
        requests_without_id: Those without a request ID.
        requests_repeated: Those with the ID of an earlier one.
        requests_young: Those whose time for labels has not ended.
        rows: Rows of the other requests.
        rows_labelled: Those with a label.
        rows_missing: Those without one.
        rows_written: Rows of the table.
        labels: Labels.
        labels_used: Those that are in the table.
        labels_early: Those before their request's answer.
        labels_late: Those after their request's time.
        labels_doubled: Those of a row with several, beside the one that is used.
        labels_of_young: Those of requests whose time has not ended.
        labels_without_row: Those whose request lacks the row or candidate.
        labels_unknown: Those whose request is not in the log.
    """

    files: int = 0
    passes: int = 0
    requests: int = 0
    requests_without_id: int = 0
    requests_repeated: int = 0
    requests_young: int = 0
    rows: int = 0
    rows_labelled: int = 0
    rows_missing: int = 0
    rows_written: int = 0
    labels: int = 0
    labels_used: int = 0
    labels_early: int = 0
    labels_late: int = 0
    labels_doubled: int = 0
    labels_of_young: int = 0
    labels_without_row: int = 0
    labels_unknown: int = 0

    def to_json(self) -> dict[str, int]:
        """Return all counts by name."""
        return asdict(self)
