"""Run a script with TorchRec's names, rewrite its imports, or list the names: ``python -m recsys.as_torchrec``."""

from __future__ import annotations

import sys

from recsys.as_torchrec.cli import main

if __name__ == "__main__":
    sys.exit(main())
