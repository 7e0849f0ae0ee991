"""The server; also ``python -m recsys.serve``, the command ``recsys-serve``."""

import sys
from typing import TYPE_CHECKING

from recsys.faces import face

if TYPE_CHECKING:
    from serve.app.__main__ import main

__all__ = ["main"]

__getattr__ = face(__name__, {"serve.app.__main__": ("main",)})

if __name__ == "__main__":
    sys.exit(__getattr__("main")())
