"""``python -m recsys.train`` is ``recsys-train``; torchrun starts it so on each rank."""

from __future__ import annotations

import sys

from recsys.train.cli import main

sys.exit(main())
