"""What a recorder asks of torch.cuda; tests/targets/test_cuda_graphs.py has what comes of it on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from recsys.artifact.cuda.recorder import CudaRecorder


class _FakeCuda:
    """Notes what a recorder asks torch.cuda for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[str] = []
        self.num_streams = 0
        fakes = {
            "Stream": self._stream,
            "current_stream": lambda _: "current",
            "stream": lambda stream: self._within(f"on {stream.cuda_stream}"),
            "graph": lambda _, pool, stream, capture_error_mode: self._within(
                f"capture on {stream.cuda_stream}, {pool}, {capture_error_mode}"
            ),
            "CUDAGraph": lambda: SimpleNamespace(replay=self._note("replay"), pool=lambda: "pool"),
            "Event": lambda: SimpleNamespace(record=self._note("record"), synchronize=self._note("wait")),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def _stream(self, _: torch.device) -> SimpleNamespace:
        self.num_streams += 1
        number = self.num_streams % 32
        return SimpleNamespace(
            cuda_stream=number, wait_stream=lambda _: None, synchronize=self._note("synchronize")
        )

    def _note(self, text: str) -> Callable[[], None]:
        return lambda: self.noted.append(text)

    @contextmanager
    def _within(self, text: str) -> Iterator[None]:
        self.noted.append(text)
        try:
            yield
        finally:
            self.noted.append("end")


class TestCudaRecorder:
    def test_work_is_called_then_captured_then_replayed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = _FakeCuda(monkeypatch)
        recorder = CudaRecorder(torch.device("cuda:0"))
        first = recorder.record(lambda: cuda.noted.append("work"))
        warm = ["on 1", "work", "work", "work", "synchronize"]
        assert cuda.noted == [*warm, "capture on 1, None, thread_local", "work", "end", "end"]
        cuda.noted.clear()
        recorder.record(lambda: cuda.noted.append("work"))
        assert cuda.noted == [*warm, "capture on 1, pool, thread_local", "work", "end", "end"]
        cuda.noted.clear()
        first()
        assert cuda.noted == ["on 1", "replay", "record", "end", "wait"]

    def test_what_cannot_be_recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = _FakeCuda(monkeypatch)

        def work() -> None:
            if any(text.startswith("capture") for text in cuda.noted):
                raise RuntimeError(
                    "operation not permitted when stream is capturing\nCUDA kernel errors might"
                )

        recorder = CudaRecorder(torch.device("cuda:0"))
        with pytest.raises(
            RuntimeError, match=r"^cuda_graph_rows: .* \(operation not permitted .* capturing\), exp"
        ):
            recorder.record(work)
        # Both contexts were left.
        assert cuda.noted[-2:] == ["end", "end"]
        monkeypatch.setattr(cuda, "noted", [])
        recorder.record(lambda: None)

    def test_no_two_recorders_have_one_stream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _FakeCuda(monkeypatch)
        device = torch.device("cuda:0")
        recorders = [CudaRecorder(device) for _ in range(32)]
        assert len({recorder.stream.cuda_stream for recorder in recorders}) == 32
        with pytest.raises(
            RuntimeError, match="got more than 32 models and deltas with CUDA graphs on cuda:0"
        ):
            CudaRecorder(device)
        freed = recorders.pop(7).stream.cuda_stream
        assert CudaRecorder(device).stream.cuda_stream == freed
