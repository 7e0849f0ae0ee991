"""Functions on the ranks of a real process group: gloo, one process per rank, on this machine alone.

``run_ranks`` starts the ranks, calls a function on each and ends them. ``RankPool`` keeps them for many calls;
``live_pool`` shares one between all tests of a process. Ranks are forks of a process that has imported torch, because
that takes seconds.

The function is importable by its name (top level of a module), and is called as ``function(rank, world_size, *args)``
with ``torch.distributed`` initialized and one torch thread. Arguments and results travel as bytes, so no tensor is
shared between processes.
"""

from __future__ import annotations

import atexit
import faulthandler
import io
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

RankFunction = Callable[..., Any]

#: Processes that are forks of one that has imported torch, and nothing that starts threads.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.support.ranks", "recsys.model_parallel"])
#: That one imports torch; on a busy machine that takes a while.
START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 10.0
#: A hanging rank writes its stack when its time is up; the caller waits this much longer to read it.
_STACK_GRACE_S = 1.0
_ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


class RankError(RuntimeError):
    """A rank raised, or its process ended. The message holds the rank and its traceback.

    Attributes:
        rank: the (first) rank at fault.
    """

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


class RankTimeoutError(RankError):
    """Ranks gave no result in time. The message names them and says where each hangs."""


@dataclass(frozen=True)
class _Answer:
    """What a rank sends back: a value, or the text of an exception."""

    value: Any = None
    error: str | None = None


def run_ranks(world_size: int, function: RankFunction, *args: Any, timeout_s: float = 120) -> list[Any]:
    """Call ``function(rank, world_size, *args)`` on ranks of its own, which end with the call.

    Args:
        world_size: W; also 1.
        function: at the top level of an importable module.
        args: pickled with their tensors' data.
        timeout_s: for the function; the start of the processes is not counted.

    Returns:
        The ranks' results, in their order.

    Raises:
        RankError: a rank raised, or died; the others were killed.
        RankTimeoutError: a rank hung; all were killed.
    """
    with RankPool(world_size) as pool:
        return pool.run(function, *args, timeout_s=timeout_s)


def live_pool(world_size: int) -> RankPool:
    """The pool that all callers in this process share; a new one where the last one's ranks were killed.

    It ends with the process.
    """
    pool = _live_pools.get(world_size)
    if pool is None or not pool.is_usable:
        pool = RankPool(world_size).__enter__()
        _live_pools[world_size] = pool
    return pool


class RankPool:
    """Live ranks for many calls, between ``with`` and its end.

    The first call that fails kills the ranks: nobody knows what state they and their connections are in. Later calls
    say so. A function whose error is the very thing under test catches it and returns it.

    Args:
        world_size: W.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._unusable: str | None = "its ranks have not been started; use it in a with statement"

    def __enter__(self) -> RankPool:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        try:
            with _environment():
                for rank in range(self.world_size):
                    ours, theirs = FORKS.Pipe()
                    args = (rank, self.world_size, Path(self._folder.name), theirs, dict(os.environ))
                    process = FORKS.Process(target=_serve, args=args, name=f"rank {rank}", daemon=True)
                    process.start()
                    theirs.close()  # the rank's end is in its own process alone: its death is the end of the pipe
                    self._processes.append(process)
                    self._pipes.append(ours)
            self._collect(START_TIMEOUT_S)
        except BaseException:
            self._kill("its ranks did not start")
            raise
        self._unusable = None
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_usable(self) -> bool:
        """Whether its ranks are alive: started, not closed, and no call has failed."""
        return self._unusable is None

    def run(self, function: RankFunction, *args: Any, timeout_s: float = 120) -> list[Any]:
        """Call ``function(rank, world_size, *args)`` on every rank; the results in the order of the ranks.

        Raises:
            RankError: a rank raised, or died.
            RankTimeoutError: a rank hung.
            RuntimeError: the pool is unusable since an earlier call, or was closed.
        """
        if self._unusable is not None:
            raise RuntimeError(f"this pool of {self.world_size} ranks cannot be used: {self._unusable}")
        request = _to_bytes((function, args, timeout_s))
        try:
            for pipe in self._pipes:
                try:
                    pipe.send_bytes(request)
                except OSError:
                    continue  # a dead rank, which collecting finds
            return self._collect(timeout_s)
        except BaseException as error:
            self._kill(f"{function.__name__} failed in an earlier call ({type(error).__name__})")
            raise

    def close(self) -> None:
        """Let the ranks destroy their process group and end; kill what does not. Can be called again."""
        for pipe in self._pipes:
            try:
                pipe.send_bytes(b"")
            except OSError:
                continue
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._kill(self._unusable or "it was closed")

    def _kill(self, reason: str) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._pipes, self._folder = [], [], None
        self._unusable = reason

    def _collect(self, timeout_s: float) -> list[Any]:
        waiting = dict(enumerate(self._pipes))
        results: dict[int, Any] = {}
        deadline = time.monotonic() + timeout_s + _STACK_GRACE_S
        while waiting:
            answers = self._answers(waiting, deadline - time.monotonic())
            if not answers:
                raise RankTimeoutError(min(waiting), self._hanging(sorted(waiting), timeout_s))
            if any(answer is None or answer.error is not None for answer in answers.values()):
                # When a rank dies, others raise because of it, a little later: the dead come first.
                answers |= self._answers({r: p for r, p in waiting.items() if r not in answers}, 0)
                raise self._failure(answers)
            for rank, answer in answers.items():
                assert answer is not None
                results[rank] = answer.value
                del waiting[rank]
        return [results[rank] for rank in range(self.world_size)]

    def _answers(self, pipes: dict[int, Connection], timeout_s: float) -> dict[int, _Answer | None]:
        """From those that have something to say: None says that the process has ended."""
        ready = wait(list(pipes.values()), max(0.0, timeout_s))
        return {rank: _receive(pipe) for rank, pipe in pipes.items() if pipe in ready}

    def _failure(self, answers: dict[int, _Answer | None]) -> RankError:
        for rank, answer in answers.items():
            if answer is None:
                self._processes[rank].join(_STOP_TIMEOUT_S)
                return RankError(rank, f"rank {rank}: its process {_ending(self._processes[rank].exitcode)}")
        failed = {rank: answer.error for rank, answer in answers.items() if answer and answer.error}
        text = "\n".join(f"rank {rank} raised:\n{error}" for rank, error in failed.items())
        return RankError(min(failed), text)

    def _hanging(self, ranks: list[int], timeout_s: float) -> str:
        assert self._folder is not None
        stacks = []
        for rank in ranks:
            file = _stack_file(Path(self._folder.name), rank)
            stacks.append(f"rank {rank}: {file.read_text() if file.exists() else ''}")
        return f"ranks {ranks}: no result after {timeout_s} s\n" + "\n".join(stacks)


def _serve(rank: int, world_size: int, folder: Path, pipe: Connection, environment: dict[str, str]) -> None:
    """A rank's process: answer calls until the pipe says stop, or closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller gets it too, and ends its ranks
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(str(folder / "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        pipe.send_bytes(_to_bytes(_Answer()))
    except Exception:
        pipe.send_bytes(_to_bytes(_Answer(error=traceback.format_exc())))
        raise
    with _stack_file(folder, rank).open("w") as stack_file:
        while request := _request(pipe):
            try:
                function, args, timeout_s = _from_bytes(request)
                faulthandler.dump_traceback_later(timeout_s, file=stack_file)
                answer = _to_bytes(_Answer(value=function(rank, world_size, *args)))
            except BaseException:
                # This process lives on until the caller kills it: its death would make the other ranks raise too.
                answer = _to_bytes(_Answer(error=traceback.format_exc()))
            finally:
                faulthandler.cancel_dump_traceback_later()
            pipe.send_bytes(answer)
    dist.destroy_process_group()


def _request(pipe: Connection) -> bytes:
    try:
        return pipe.recv_bytes()
    except EOFError:
        return b""


def _receive(pipe: Connection) -> _Answer | None:
    try:
        answer: _Answer = _from_bytes(pipe.recv_bytes())
    except (EOFError, ConnectionError):
        return None
    return answer


def _to_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _from_bytes(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


def _stack_file(folder: Path, rank: int) -> Path:
    return folder / f"stack_of_rank_{rank}"


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "closed its connection"
    if exit_code < 0:
        return f"ended by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


@contextmanager
def _environment() -> Iterator[None]:
    """What must be set before a rank imports torch; the caller's environment is as before afterwards."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_live_pools: dict[int, RankPool] = {}


@atexit.register
def _close_live_pools() -> None:
    for pool in _live_pools.values():
        pool.close()
