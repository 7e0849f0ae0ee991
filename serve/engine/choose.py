"""Which engine answers: the native one where it is built and fits the installed torch, or the reference engine."""

from __future__ import annotations

import logging
from collections.abc import Callable

from serve.engine import native
from serve.engine.interface import Engine
from serve.engine.records import Observer
from serve.engine.reference.engine import ReferenceEngine

_log = logging.getLogger("serve")


class EngineError(RuntimeError):
    """The engine that was asked for cannot be had; the text says why and what to do."""


def choose_engine(kind: str) -> Callable[[Observer], Engine]:
    """Return what makes the engine, on the event loop.

    Args:
        kind: ``native``, ``reference``, or ``auto``: native where it can be had, else reference, with a line in the log
            that says why.

    Raises:
        EngineError: the native engine was asked for by name, and cannot be had.
    """
    if kind == "reference":
        return ReferenceEngine
    try:
        binding = native.load_binding()
    except native.NotBuiltError as error:
        if kind == "native":
            raise EngineError(f"engine: {error}") from None
        _log.warning("the reference engine answers, in Python and slower: %s", error)
        return ReferenceEngine
    return lambda observer: native.NativeEngine(observer, binding)
