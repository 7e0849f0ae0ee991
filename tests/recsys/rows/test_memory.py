"""Where rows lie in memory. The system is asked what it did: nothing of it is simulated."""

from __future__ import annotations

import mmap
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recsys.errors import RowsMemoryError
from recsys.rows import memory
from recsys.rows.file import RowsFile
from recsys.rows.memory import RowsMemory, lock, pages_of, place
from tests.support.children.limits import without_memory_locking

HUGE_PAGE = 2 << 20
NUM_BYTES = 4 * HUGE_PAGE
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_huge_pages = pytest.mark.skipif(
    not THP.is_file() or "[never]" in THP.read_text(), reason="the kernel gives no huge pages"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "rows.bin"
    found.write_bytes(bytes(range(256)) * (NUM_BYTES // 256))
    return found


@needs_huge_pages
def test_copied_rows_lie_on_huge_pages(path: Path) -> None:
    rows = RowsFile(path).held(NUM_BYTES, RowsMemory(copy_rows=True))
    pages = pages_of(rows)
    assert pages.resident_bytes == NUM_BYTES
    # Their start and their end need not be aligned; the machine may be short of huge pages.
    assert pages.huge_bytes % HUGE_PAGE == 0
    assert pages.huge_bytes >= HUGE_PAGE


def test_mapped_rows_are_read_on_demand(path: Path) -> None:
    rows = RowsFile(path).held(NUM_BYTES, RowsMemory(random_access=True))
    assert pages_of(rows).resident_bytes == 0
    rows[0].item()
    assert 0 < pages_of(rows).resident_bytes < NUM_BYTES


@pytest.mark.parametrize("copy_rows", [False, True], ids=["mapped", "copied"])
def test_locked_rows_are_read_and_stay(path: Path, copy_rows: bool) -> None:
    rows = RowsFile(path).held(NUM_BYTES, RowsMemory(copy_rows=copy_rows, lock_rows=True))
    pages = pages_of(rows)
    assert (pages.resident_bytes, pages.locked_bytes) == (NUM_BYTES, NUM_BYTES)


def test_locking_a_mapped_file_copies_none_of_its_pages(path: Path) -> None:
    rows = RowsFile(path).held(NUM_BYTES, RowsMemory(lock_rows=True))
    start = f"{rows.data_ptr():x}-"
    smaps = Path("/proc/self/smaps").read_text()
    found = re.search(rf"^{start}.*?^Anonymous: +(\d+) kB", smaps, re.DOTALL | re.MULTILINE)
    assert found is not None
    assert found[1] == "0"


def test_memory_that_does_not_start_with_a_page_can_be_locked() -> None:
    rows = torch.zeros(3 * NUM_BYTES, dtype=torch.uint8)[5 : NUM_BYTES + 5]
    lock(rows)
    assert pages_of(rows).locked_bytes == NUM_BYTES


def test_a_limit_of_locked_memory_is_named_with_its_remedy(path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from recsys.rows.file import RowsFile\n"
        "from recsys.rows.memory import RowsMemory\n"
        f"RowsFile(Path(sys.argv[1])).held({NUM_BYTES}, RowsMemory(lock_rows=True))"
    )
    done = subprocess.run(
        [*without_memory_locking(65536), sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert (
        f"RowsMemoryError: lock_rows: got a limit of 65536 bytes for locked memory (RLIMIT_MEMLOCK), expected room "
        f"for {NUM_BYTES} more; raise it (ulimit -l, "
    ) in done.stderr


@pytest.mark.skipif(not Path("/proc/self/numa_maps").is_file(), reason="the kernel has no NUMA")
@pytest.mark.parametrize("numa", ["interleave", "local"])
def test_copied_rows_have_the_requested_placement(path: Path, numa: str) -> None:
    rows = RowsFile(path).held(NUM_BYTES, RowsMemory(copy_rows=True, numa=numa))
    policies = dict(line.split()[:2] for line in Path("/proc/self/numa_maps").read_text().splitlines())
    assert policies[f"{rows.data_ptr():x}"].split(":")[0] == numa


def test_a_refused_placement_says_so() -> None:
    own = mmap.mmap(-1, HUGE_PAGE)
    start = torch.frombuffer(own, dtype=torch.uint8).data_ptr()
    with pytest.raises(
        RowsMemoryError, match=r"numa: got 'local', which this system refuses \(mbind: Invalid"
    ):
        place(start + 1, HUGE_PAGE, "local")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"numa": "all", "copy_rows": True}, "numa: got 'all', expected one of interleave, local, or none"),
        (
            {"numa": "local"},
            "numa: got 'local' for mapped rows, whose pages the system places; set copy_rows too",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RowsMemory(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "num_bytes", "expected"),
    [(None, 75, False), (None, 76, True), (True, 1, True), (False, 1000, False)],
)
def test_rows_larger_than_the_memory_are_read_at_random(
    given: bool | None, num_bytes: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda: 100)
    assert RowsMemory(random_access=given).reads_at_random(num_bytes) == expected
