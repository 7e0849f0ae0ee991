"""TorchScript's warnings: none of them reaches a user, in whatever threads graphs are compiled and loaded."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from recsys.scripting import scripted, torchscript

# As where Python's own filters are off: -W always, or a server's log of warnings.
pytestmark = pytest.mark.filterwarnings("always")


def _traced() -> nn.Module:
    return fx.symbolic_trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))


def test_no_warning_of_ours(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = torchscript.script(_traced(), {"twice": _traced()})
        torchscript.save(module, tmp_path / "a.pt")
        torchscript.save_uncopied(module, tmp_path / "b.pt", {"text": "words"})
        torchscript.freeze(torchscript.load(tmp_path / "a.pt"), ["twice"])
        scripted.know_types.__wrapped__()
    assert [str(each.message) for each in caught] == []


def test_warnings_of_the_users_own_code_stay() -> None:
    torchscript.script(_traced())
    with pytest.warns(Warning, match=r"`torch\.jit\.script` is (deprecated|not supported)"):
        torch.jit.script(nn.Tanh())


def test_threads_that_overlap() -> None:
    before = list(warnings.filters)
    entered, left = threading.Event(), threading.Event()

    def first() -> None:
        with torchscript.quiet():
            entered.set()
            assert left.wait(10)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=first)
        thread.start()
        assert entered.wait(10)
        with torchscript.quiet():
            pass
        torch.jit.script(nn.Tanh())  # the first thread is still inside
        left.set()
        thread.join()
        assert caught == []
        torch.jit.script(nn.Tanh())
        assert len(caught) == 1
    assert warnings.filters == before


def test_a_thread_that_leaves_before_the_others() -> None:
    entered, left = threading.Event(), threading.Event()

    def second() -> None:
        with torchscript.quiet():
            entered.set()
            assert left.wait(10)
            torch.jit.script(nn.Tanh())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torchscript.quiet():
            thread = threading.Thread(target=second)
            thread.start()
            assert entered.wait(10)
        left.set()
        thread.join()
    assert caught == []
