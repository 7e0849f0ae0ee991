"""What public code imports from TorchRec is defined, or left out for a reason."""

from __future__ import annotations

from pathlib import Path

from recsys.as_torchrec.table import load_table

LINES = (Path(__file__).parent / "public_imports.txt").read_text().splitlines()
IMPORTS = [
    (module, name)
    for module, _, names in (line.partition(": ") for line in LINES if not line.startswith("#"))
    for name in names.split()
]


def test_what_public_code_imports_is_defined_or_left_out() -> None:
    table = load_table()
    unlisted = [f"{module}.{name}" for module, name in IMPORTS if table.find(module, name) is None]
    assert not unlisted, "\n".join(unlisted)


def test_most_of_it_is_defined() -> None:
    table = load_table()
    entries = [table.find(module, name) for module, name in IMPORTS]
    num_defined = sum(entry is not None and entry.ours is not None for entry in entries)
    assert num_defined / len(IMPORTS) > 0.7, f"{num_defined} of {len(IMPORTS)}"
