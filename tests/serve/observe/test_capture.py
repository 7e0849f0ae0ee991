"""Captures: what is written is read back, whatever the disk does; what is damaged is named."""

from __future__ import annotations

import stat
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from serve.config.settings import CaptureConfig
from serve.engine.records import Captured
from serve.engine.reference.raw_request import RawDense, RawRequest, RawRequestLike, RawSparse, serialized
from serve.observe.capture import Capture
from serve.observe.capture_file import (
    HEADER_BYTES,
    CapturedRequest,
    CaptureError,
    CaptureReader,
    header,
    record,
)
from serve.wire import predict_pb2 as wire
from tests.support.small_disk import small_filesystem

ROOT = Path(__file__).parents[3]


def raw_request(user: int = 1) -> RawRequest:
    return RawRequest(
        num_rows=2,
        dense=[RawDense("price", np.array([1.5, 2.5], "<f4").tobytes())],
        sparse=[RawSparse("item", np.array([1, 0], "<i4").tobytes(), np.array([7], "<i8").tobytes())],
        context_dense=[RawDense("age", np.array([33], "<f4").tobytes())],
        context_sparse=[
            RawSparse(
                "user",
                np.array([1], "<i4").tobytes(),
                np.array([user], "<i8").tobytes(),
                np.array([0.5], "<f4").tobytes(),
            )
        ],
    )


def captured_as(raw: RawRequestLike) -> Captured:
    """As the engine reports it."""
    return Captured(time_s=time.monotonic(), model="dlrm", version="7", message=serialized(raw))


def captured(path: Path) -> list[CapturedRequest]:
    with CaptureReader(path) as reader:
        return list(reader)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.capture"


def capture_of(path: Path, num_requests: int, **settings: int) -> dict[str, int]:
    """Write so many requests, one user after the other, and wait for each: the queue never is the limit."""
    capture = Capture(CaptureConfig(path=path, share=1.0, **settings))
    for user in range(num_requests):
        capture.offer(captured_as(raw_request(user)))
    capture.close()
    return capture.counts()


def test_what_was_captured_is_read_back(path: Path) -> None:
    assert capture_of(path, 3) == {"written": 3, "dropped": 0, "failed": 0}
    requests = captured(path)
    assert [(r.model, r.version) for r in requests] == [("dlrm", "7")] * 3
    assert [np.frombuffer(r.parse().context_sparse[0].values, "<i8")[0] for r in requests] == [0, 1, 2]
    assert sorted(r.time_us for r in requests) == [r.time_us for r in requests]
    raw, message = raw_request(2), requests[2].parse()
    assert message.num_rows == 2
    for part in ("dense", "context_dense"):
        assert [(m.name, m.values) for m in getattr(message, part)] == [
            (m.name, m.values) for m in getattr(raw, part)
        ]
    for part in ("sparse", "context_sparse"):
        assert [(m.name, m.lengths, m.values, m.weights) for m in getattr(message, part)] == [
            (m.name, m.lengths, m.values, m.weights) for m in getattr(raw, part)
        ]


def test_who_sent_it_is_left_out(path: Path) -> None:
    capture = Capture(CaptureConfig(path=path, share=1.0))
    request = wire.PredictRequest(num_rows=1, request_id="visit-12", model="m", version="3")
    capture.offer(captured_as(request))
    capture.close()
    assert captured(path)[0].parse() == wire.PredictRequest(num_rows=1)


def test_its_owner_alone_can_read_it_and_an_old_one_is_replaced(path: Path) -> None:
    path.write_bytes(b"old")
    path.chmod(0o644)
    capture_of(path, 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(captured(path)) == 1


def test_a_link_is_replaced_by_nobody(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep")
    path.symlink_to(target)
    with pytest.raises(FileExistsError, match="is not a file"):
        Capture(CaptureConfig(path=path, share=1.0))
    assert target.read_text() == "keep"


@pytest.mark.parametrize("name", ["missing/requests.capture", "."])
def test_a_file_that_cannot_be_made_is_an_error_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError):
        Capture(CaptureConfig(path=tmp_path / name, share=1.0))


def test_the_file_stops_growing(path: Path) -> None:
    size = len(record(captured_one()))
    counts = capture_of(path, 10, max_bytes=HEADER_BYTES + 3 * size + size // 2)
    assert counts == {"written": 3, "dropped": 7, "failed": 0}
    assert path.stat().st_size == HEADER_BYTES + 3 * size
    assert len(captured(path)) == 3


def captured_one() -> CapturedRequest:
    message = wire.PredictRequest()
    for part in ("dense", "context_dense"):
        for dense in getattr(raw_request(), part):
            getattr(message, part).add(name=dense.name, values=dense.values)
    for part in ("sparse", "context_sparse"):
        for use in getattr(raw_request(), part):
            getattr(message, part).add(
                name=use.name, lengths=use.lengths, values=use.values, weights=use.weights
            )
    message.num_rows = 2
    return CapturedRequest(time_us=5, model="dlrm", version="7", data=message.SerializeToString())


class Gate(float):
    """A time that is not to be had until the gate opens: it holds the writer up."""

    def __new__(cls) -> Gate:
        return super().__new__(cls, 0.0)

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __sub__(self, other: float) -> float:
        self.reached.set()
        assert self.open.wait(60)
        return 0.0

    def request(self) -> Captured:
        return Captured(time_s=self, model="dlrm", version="7", message=b"")


def test_no_request_waits_for_the_file(path: Path) -> None:
    capture = Capture(CaptureConfig(path=path, share=1.0))
    gate = Gate()
    capture.offer(gate.request())
    assert gate.reached.wait(60)
    for user in range(2000):
        capture.offer(captured_as(raw_request(user)))
    dropped = capture.counts()["dropped"]
    assert dropped == 2000 - 1024
    gate.open.set()
    capture.close()
    assert capture.counts() == {"written": 1025, "dropped": dropped, "failed": 0}


def test_what_waits_is_bounded_in_bytes(path: Path) -> None:
    capture = Capture(CaptureConfig(path=path, share=1.0))
    gate = Gate()
    capture.offer(gate.request())
    assert gate.reached.wait(60)
    large = RawRequest(num_rows=1, dense=[RawDense("price", bytes(24 << 20))])
    for _ in range(5):
        capture.offer(captured_as(large))
    gate.open.set()
    capture.close()
    assert capture.counts() == {"written": 3, "dropped": 3, "failed": 0}


def test_what_comes_after_the_end_is_dropped(path: Path) -> None:
    capture = Capture(CaptureConfig(path=path, share=1.0))
    capture.close()
    capture.close()
    capture.offer(captured_as(raw_request()))
    assert capture.counts() == {"written": 0, "dropped": 1, "failed": 0}


def test_a_request_that_cannot_be_written_ends_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    capture = Capture(CaptureConfig(path=path, share=1.0))
    for model in ("\ud800", "dlrm", "\ud800"):  # half a surrogate pair is no UTF-8
        capture.offer(Captured(time_s=0.0, model=model, version="7", message=b""))
    capture.close()
    assert capture.counts() == {"written": 1, "dropped": 0, "failed": 2}
    assert len(caplog.records) == 1


def test_a_full_disk_is_told_once_and_what_was_written_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_filesystem(tmp_path):
        (tmp_path / "other").write_bytes(bytes(30_000))
        path = tmp_path / "requests.capture"
        capture = Capture(CaptureConfig(path=path, share=1.0))
        for user in range(800):
            capture.offer(captured_as(raw_request(user)))
        gate = Gate()
        capture.offer(gate.request())
        assert gate.reached.wait(60)
        counts = capture.counts()
        assert counts["failed"] > 0
        assert counts["written"] == len(captured(path)) > 0
        assert [r.message for r in caplog.records if "No space left" in r.message] == [
            "a request could not be captured: No space left on device; serving goes on, "
            "further failures are only counted"
        ]
        (tmp_path / "other").unlink()
        gate.open.set()
        capture.offer(captured_as(raw_request(9999)))
        capture.close()
        requests = captured(path)
        assert len(requests) == counts["written"] + 2
        assert np.frombuffer(requests[-1].parse().context_sparse[0].values, "<i8")[0] == 9999


def test_a_limit_on_file_sizes_is_no_end_of_the_process(path: Path) -> None:
    """In a process of its own: the limit holds for all that it writes."""
    script = """
        import resource, sys
        from pathlib import Path
        from serve.observe.capture import Capture
        from serve.config.settings import CaptureConfig
        from tests.serve.observe.test_capture import captured_as, raw_request
        capture = Capture(CaptureConfig(path=Path(sys.argv[1]), share=1.0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for user in range(20):
            capture.offer(captured_as(raw_request(user)))
        capture.close()
        print(*capture.counts().values())
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    written, dropped, failed = map(int, ran.stdout.split())
    assert written == len(captured(path)) > 0
    assert (dropped, failed) == (0, 20 - written)
    assert ran.stderr.count("could not be captured: File too large") == 1


# Reading what others may have made.


@pytest.fixture
def whole(path: Path) -> bytes:
    capture_of(path, 3)
    return path.read_bytes()


def test_a_file_that_was_cut_off_anywhere_gives_its_whole_records(path: Path, whole: bytes) -> None:
    size = (len(whole) - HEADER_BYTES) // 3
    for length in range(HEADER_BYTES, len(whole) + 1):
        path.write_bytes(whole[:length])
        with CaptureReader(path) as reader:
            got = list(reader)
        assert len(got) == (length - HEADER_BYTES) // size
        assert reader.num_cut_bytes == (length - HEADER_BYTES) % size


def test_a_byte_that_changed_anywhere_is_noticed(path: Path, whole: bytes) -> None:
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(CaptureError, match=r"not a capture|damaged"):
            captured(path)


def test_records_before_the_damage_are_given(path: Path, whole: bytes) -> None:
    path.write_bytes(whole[:-1] + b"\xff")
    with CaptureReader(path) as reader:
        requests = iter(reader)
        assert [next(requests).model, next(requests).model] == ["dlrm", "dlrm"]
        with pytest.raises(CaptureError, match=r"record 3, at byte \d+: its checksum does not fit"):
            next(requests)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a capture"),
        (b"PK\x03\x04" + bytes(100), "not a capture"),
        (header(5)[:-1], "not a capture"),
    ],
    ids=["empty", "foreign", "short"],
)
def test_foreign_files_are_refused(path: Path, data: bytes, text: str) -> None:
    path.write_bytes(data)
    with pytest.raises(CaptureError, match=text):
        CaptureReader(path)


def test_a_newer_file_is_refused(path: Path) -> None:
    data = bytearray(header(5)[:-4])
    data[8] = 9
    path.write_bytes(bytes(data) + zlib.crc32(data).to_bytes(4, "little"))
    with pytest.raises(CaptureError, match="got version 9, expected 1"):
        CaptureReader(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be read: No such file"):
        CaptureReader(tmp_path / "missing")
    with pytest.raises(CaptureError, match="cannot be read: Is a directory"):
        CaptureReader(tmp_path)
    with pytest.raises(CaptureError, match="expected a file"):
        CaptureReader(Path("/dev/null"))


def lying(make: Callable[[bytes], bytes]) -> bytes:
    """A record with right checksums around a wrong body."""
    body = make(record(captured_one())[12:])
    head = len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little")
    return header(5) + head + zlib.crc32(head).to_bytes(4, "little") + body


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda body: body[:5], "got 5 bytes, expected at least 12"),
        (lambda body: body[:8] + b"\xff\xff" + body[10:], "got names of 65535 and 1 bytes"),
        (lambda body: body[:12] + b"\xff" + body[13:], "not UTF-8"),
    ],
    ids=["short", "long name", "no text"],
)
def test_bodies_that_lie_are_refused(path: Path, make: Callable[[bytes], bytes], text: str) -> None:
    path.write_bytes(lying(make))
    with pytest.raises(CaptureError, match=text):
        captured(path)


def test_bytes_that_are_no_request_are_refused(path: Path) -> None:
    path.write_bytes(header(5) + record(CapturedRequest(time_us=0, model="m", version="1", data=b"\xff\xff")))
    with pytest.raises(CaptureError, match="not a PredictRequest"):
        captured(path)[0].parse()
