"""Run as a process by ``test_manager_memory``: swaps one version for the next, again and again, under requests.

Prints a JSON list of what the process holds after each swap, in bytes: ``rss``, and ``private`` of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

from recsys.artifact.parts import read_manifest
from recsys.base.allocator import tune_malloc
from serve.config.models import ModelSettings
from serve.models.repository import Repository
from tests.support.serve.managing import managing
from tests.support.serve.messages.cases import random_sample


def memory() -> dict[str, int]:
    """From ``/proc/self/smaps_rollup``."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return {"rss": sizes["Rss"], "private": sizes["Private_Clean"] + sizes["Private_Dirty"]}


def link(artifact: Path, root: Path, version: int) -> None:
    """Put an artifact into the repository by another version's name."""
    if artifact.is_file():
        os.link(artifact, root / "wide" / f"{version}.pt")
        return
    path = root / "wide" / str(version)
    path.mkdir()
    for file in artifact.iterdir():
        os.link(file, path / file.name)


async def swap(artifact: Path, root: Path, num_swaps: int, keep_previous: bool) -> None:
    """See the module."""
    signature = read_manifest(artifact).signature
    (root / "wide").mkdir(parents=True)
    sample = random_sample(signature, 64, np.random.default_rng(0))
    found = []
    async with managing(Repository(root), ModelSettings(keep_previous=keep_previous)) as world:
        for version in range(1, num_swaps + 1):
            link(artifact, root, version)
            await world.manager.rescan()
            for _ in range(20):
                assert (await world.predict(sample))[0] == str(version)
            await world.settle()
            found.append(memory())
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    tune_malloc()
    asyncio.run(swap(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "keep"))
