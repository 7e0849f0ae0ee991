"""Choice of the engine: native if it is built for the installed torch, else reference."""

from __future__ import annotations

import logging
from collections.abc import Callable

from recsys.base.native_module import NotBuiltError
from serve.engine import native
from serve.engine.interface import Engine
from serve.engine.records import Observer
from serve.engine.reference.engine import ReferenceEngine
from serve.errors import EngineError

_log = logging.getLogger("serve")


def choose_engine(kind: str) -> Callable[[Observer], Engine]:
    """Return a function that makes the engine; call it on the event loop.

    Args:
        kind: ``native``, ``reference``, or ``auto``: native if available, else reference, with the reason in
            the log.

    Raises:
        EngineError: ``native`` was requested and is not available.
    """
    if kind == "reference":
        return ReferenceEngine
    try:
        binding = native.load_binding()
    except NotBuiltError as error:
        if kind == "native":
            raise EngineError(f"engine: {error}") from None
        _log.warning("the reference engine answers, in Python and slower: %s", error)
        return ReferenceEngine
    return lambda observer: native.NativeEngine(observer, binding)
