"""Rows that IDs read under the policy ``fmix64``: the cases of Python's and the C++ tests.

    python -m tests.cases.rows_of_ids    # writes rows_of_ids.txt: an ID, the rows of a table, and the ID's row, a line

The rows come from Python's numbers of any size, so that nothing wraps unseen.
"""

from __future__ import annotations

import random
from pathlib import Path

FILE = Path(__file__).with_suffix(".txt")
_NUM_ROWS = (1, 2, 7, 60, 1000, 1024, 4096, 100_000, 1 << 20, 999_999_937, 1 << 40)


def fmix64(number: int) -> int:
    """MurmurHash3's finalizer of a number of 64 bits."""
    number ^= number >> 33
    number = number * 0xFF51AFD7ED558CCD % 2**64
    number ^= number >> 33
    number = number * 0xC4CEB9FE1A85EC53 % 2**64
    return number ^ number >> 33


def row_of(number: int, num_rows: int) -> int:
    """The row of an ID."""
    return fmix64(number % 2**64) % 2**63 % num_rows


def ids() -> list[int]:
    """IDs of all kinds, each once."""
    draw = random.Random(5)
    edges = [0, 1, -1, 2**63 - 1, -(2**63), 2**63 - 2, -(2**63) + 1]
    powers = [sign * 2**k for k in range(1, 63) for sign in (1, -1)]
    snowflakes = [
        (1_400_000_000_000 + draw.randrange(10**11)) << 22 | draw.randrange(4) << 12 for _ in range(20)
    ]
    rounds = [i * 10**k for k in (3, 6, 12) for i in range(1, 8)]
    anywhere = [draw.randrange(-(2**63), 2**63) for _ in range(40)]
    return list(dict.fromkeys([*edges, *powers, *snowflakes, *rounds, *anywhere]))


def cases() -> list[tuple[int, int, int]]:
    """An ID, the rows of a table, and the ID's row."""
    return [
        (one, num_rows, row_of(one, num_rows))
        for i, one in enumerate(ids())
        for num_rows in (_NUM_ROWS if i < 7 else (_NUM_ROWS[i % 11], _NUM_ROWS[(i + 5) % 11]))
    ]


def read() -> list[tuple[int, int, int]]:
    """The cases of the file."""
    lines = FILE.read_text().splitlines()
    return [(one, num_rows, row) for one, num_rows, row in (map(int, line.split()) for line in lines)]


def written() -> str:
    """The file's text."""
    return "".join(f"{one} {num_rows} {row}\n" for one, num_rows, row in cases())


if __name__ == "__main__":
    FILE.write_text(written())
