"""Run as a process by ``test_memory``: builds a model from a checkpoint and, where told to, exports it.

Prints the process's largest resident set in bytes, without the libraries: how much of a library's file one access maps
depends on how the file was written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from export.pipeline import export_model
from export.source.load import Source, load_model
from recsys import EmbeddingBagCollection
from recsys.configs import EmbeddingBagConfig
from recsys.quant import float_weights

DIM = 64
NUM_ROWS = (600_000, 300_000, 300_000)
MODEL_BYTES, LARGEST_TABLE_BYTES = sum(NUM_ROWS) * DIM * 4, max(NUM_ROWS) * DIM * 4


def make() -> nn.Module:
    """Three tables, 307 MB."""
    tables = [
        EmbeddingBagConfig(name=f"t{i}", num_embeddings=rows, embedding_dim=DIM, feature_names=[f"f{i}"])
        for i, rows in enumerate(NUM_ROWS)
    ]
    return EmbeddingBagCollection(tables)


def main(mode: str, path: Path) -> None:
    """Modes: ``write`` a state dict; ``load`` it and read all of it; ``export`` it."""
    torch.set_num_threads(1)
    if mode == "write":
        torch.save(make().state_dict(), path / "state.pt")
        return
    model = load_model(Source(path=path / "state.pt", factory="tests.support.children.memory:make"))
    if mode == "load":
        for weight in float_weights(model).values():  # type: ignore[arg-type]
            weight.detach().view(-1)[:: 4096 // 4].sum()
    else:
        export_model(model, path / mode)
    # Not getrusage: a process starts with the largest resident set of the one that started it.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    print(peak - _library_bytes())


def _library_bytes() -> int:
    """Return the resident bytes of the libraries' files."""
    total, is_library = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):  # a mapping: addresses, permissions, offset, device, inode, path
            is_library = ".so" in rest[-1]
        elif name == "Rss:" and is_library:
            total += int(rest[0]) * 1024
    return total


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
