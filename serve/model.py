"""What the server needs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from recsys.signature import Signature


class ServedModel(Protocol):
    """A model that can be served; a loaded artifact is one.

    ``forward`` and ``forward_ranking`` are called from the executors' threads, several at once if there are several
    executors. They take and return CPU tensors, wherever they compute.
    """

    @property
    def signature(self) -> Signature:
        """What ``forward`` takes and returns."""
        ...

    @property
    def target_name(self) -> str:
        """Which of the artifact's targets this is, such as "cpu"."""
        ...

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Score one batch; ``recsys.signature`` has the arguments."""
        ...

    def forward_ranking(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Score one batch of ranking requests; called only where the signature has a context (``recsys.ranking``)."""
        ...


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """How a model presents itself to clients and in the metrics.

    Attributes:
        name: requests may name it.
        version: stands in each response.
        digest: of the artifact's manifest.
        table_bytes: bytes of each table's rows, by table.
        format_version: of the artifact.
        torch_version: that the artifact was made with.
        fbgemm_version: that the artifact was made with.
    """

    name: str
    version: str
    digest: str = ""
    table_bytes: Mapping[str, int] = field(default_factory=dict)
    format_version: str = ""
    torch_version: str = ""
    fbgemm_version: str = ""
