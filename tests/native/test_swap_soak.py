"""Versions are exchanged again and again under the load of the native sender: no request fails, no memory stays.

``RECSYS_SWAP_SOAK_S`` says for how long; by hand it may be hours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serve.bench.load.native import why_not_native
from serve.bench.load.plan import Target
from serve.wire import admin_pb2
from tests.conformance.support.artifacts import export_small
from tests.conformance.support.harness import put_version, running, with_admin

SECONDS = float(os.environ.get("RECSYS_SWAP_SOAK_S", "20"))
# Small models: what a swap leaves behind would show, what the allocator keeps by chance would not.
MOST_GROWTH_BYTES = 16e6
_NUM_FIRST = 4

pytestmark = pytest.mark.skipif(
    bool(why_not_native(Target(address="127.0.0.1:9"))),
    reason="needs the native sender; make native builds it",
)


@pytest.mark.slow
@pytest.mark.timeout(300 + 2 * SECONDS)
def test_a_swap_every_second_under_full_load_fails_no_request_and_leaves_no_memory(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    for number in (1, 2):
        put_version(repository, "m", str(number), export_small(tmp_path / f"small{number}", seed=number).path)
    options = ("--repository", repository, "--no-keep-previous", *with_admin(tmp_path))
    with running(*options, folder=tmp_path) as server:
        load = [sys.executable, "-m", "serve.bench", server.address, "--sender", "native"]
        load += ["--in-flight", "32", "--duration-s", str(SECONDS), "--json"]
        with subprocess.Popen(load, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as generator:
            swaps, resident = 0, []
            while generator.poll() is None:
                began_s = time.monotonic()
                routing = admin_pb2.Routing(serve=str(1 + swaps % 2))
                server.admin().SetRouting(admin_pb2.SetRoutingRequest(model="m", routing=routing))
                resident.append(server.rss_bytes())
                swaps += 1
                try:
                    generator.wait(max(0.0, 1.0 - (time.monotonic() - began_s)))
                except subprocess.TimeoutExpired:
                    continue
            output, errors = generator.communicate()
        assert generator.returncode == 0, errors
        measured = json.loads(output)["measurement"]
        assert measured["num_failed"] == 0, measured["errors"]
        assert swaps > _NUM_FIRST
        assert measured["num_answered"] > 100 * swaps
        assert max(resident[_NUM_FIRST:]) - max(resident[:_NUM_FIRST]) < MOST_GROWTH_BYTES, resident
