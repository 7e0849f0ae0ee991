"""A process that may open no more files, in a process of its own: its ports close new connections and say so once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import recsys

ROOT = Path(recsys.__file__).resolve().parent.parent
PROGRAM = """
import logging, resource, socket, urllib.request
from serve.metrics.registry import Metrics
from serve.metrics.server import MetricsServer

class Kept(logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())

logging.getLogger().handlers = [Kept()]
server = MetricsServer(Metrics(), "127.0.0.1", 0)
clients = [socket.socket() for _ in range(40)]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
held = []
try:
    while True:
        held.append(open("/dev/null"))
except OSError:
    pass
for client in clients:
    client.connect(("127.0.0.1", server.port))
for client in clients:
    client.settimeout(30)
    assert client.recv(1) == b""
held.clear()
url = f"http://127.0.0.1:{server.port}/metrics"
assert b"recsys_" in urllib.request.urlopen(url, timeout=30).read()
server.close()
assert len(Kept.lines) == 1, Kept.lines
print(Kept.lines[0])
"""


def test_connections_beyond_the_open_files_are_closed() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "cannot accept connections (Too many open files); 1 refused" in ran.stdout
    assert "ulimit -n" in ran.stdout
