"""The rows of a loaded model, its graphs, and their state after deltas.

Shape letters: R rows.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from recsys.artifact.graphs import LoadedGraphs
from recsys.artifact.manifest import Manifest
from recsys.artifact.mappings import LoadedMapping
from recsys.artifact.programs import ProgramGraphs
from recsys.rows.file import RowsFile
from recsys.rows.memory import RowsPages, pages_of
from recsys.sharding.plan.device_rows import DeviceRows

#: Hexadecimal digits of a digest that names an artifact or a delta.
DIGEST_DIGITS = 12


def artifact_digest(manifest: Manifest) -> str:
    """Return the digest of an artifact's manifest, which holds the digest of every part.

    It is of the text as it is stored: other releases write the same manifest as another text.
    """
    text = manifest.dumps().encode() if manifest.stored is None else manifest.stored
    return hashlib.sha256(text).hexdigest()[:DIGEST_DIGITS]


@dataclass(kw_only=True)
class LoadedRows:
    """A loaded artifact's rows, which deltas change in place (see ``recsys.artifact.delta.apply``).

    Attributes:
        manifest: The manifest of the artifact.
        ranks: The rows of each rank's lookups; ranks in host memory share one tensor.
        state: The state of the rows: the artifact's digest as loaded, else that of the last applied delta.
        lock: Held by the writer of rows. Lookups do not take it.
        file: The file that lookups read in place; None if all rows are copies.
        graphs: The graphs that hold the dense weights; None if only the rows were loaded.
        dense: The dense weights that deltas have changed, by path, in host memory.
        mappings: The mappings of raw IDs to rows, which deltas change in place too.
    """

    manifest: Manifest
    ranks: Sequence[DeviceRows]
    state: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    file: RowsFile | None = field(default=None, repr=False, compare=False)
    graphs: LoadedGraphs | ProgramGraphs | None = field(default=None, repr=False, compare=False)
    dense: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    mappings: Sequence[LoadedMapping] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        self.state = self.state or self.digest

    def pages(self) -> RowsPages:
        """Return how the rows in host memory are held; zeros if all are on other devices."""
        held = [rank.rows for rank in self.ranks if rank.device.type == "cpu"]
        return pages_of(held[0]) if held else RowsPages()

    @cached_property
    def digest(self) -> str:
        """The artifact's digest."""
        return artifact_digest(self.manifest)
