"""Programs of a loaded model: its steps run on kernels of our own, without TorchScript.

Shape letters: R bytes of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from recsys.artifact.compiled import CompiledGraphs, CompiledModel, Form, ProgramPart
from recsys.artifact.graphs import LoadedGraphs
from recsys.artifact.targets import Target


class ProgramGraphs(CompiledGraphs):
    """The programs of a target that has TorchScript too.

    Args:
        parts: The program of the plain form, and of the ranking form if there is one.
        target: The target that they belong to.
        model: What calls need to know of the model.
        load_scripted: Loads the same graphs in TorchScript, over the same rows.

    Attributes:
        own_operators: How many steps each form has.

    Raises:
        ManifestError: A part cannot be used.
    """

    def __init__(
        self,
        parts: Sequence[ProgramPart],
        target: Target,
        model: CompiledModel,
        load_scripted: Callable[[], LoadedGraphs],
    ) -> None:
        self._load_scripted = load_scripted
        self._scripted: LoadedGraphs | None = None
        super().__init__(parts, target, model)
        self.own_operators = tuple(part.steps() for part in parts)

    def scripted(self) -> LoadedGraphs:
        """Return the same graphs in TorchScript, for profiles. They are loaded when they are first asked for."""
        if self._scripted is None:
            scripted = self._load_scripted()
            if self._weights:
                scripted.exchanged(self._weights).write()
            self._scripted = scripted
        return self._scripted

    def set(self, weights: Mapping[str, Tensor], forms: tuple[Form, ...]) -> None:
        """Set other forms, which have these weights in the place of the parts'."""
        super().set(weights, forms)
        self._scripted = None
