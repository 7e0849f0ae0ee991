"""recsys-serve's life around the small float model, for tests that need a server in a process of its own."""

from __future__ import annotations

import asyncio
import sys

from serve.config import ServerConfig
from serve.lifetime import serve
from tests.serve.live import INFO
from tests.serve.models import ServedSmallModel

if __name__ == "__main__":
    config = ServerConfig(port=0, metrics_port=0)
    sys.exit(asyncio.run(serve(ServedSmallModel(), INFO, config, as_json=True)))
