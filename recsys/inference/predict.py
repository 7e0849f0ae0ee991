"""The modules and factories that TorchRec packages a model with for its own server, by its names.

``recsys-export`` needs none of them: it takes any module, and an artifact's signature says what these factories say.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from recsys.embedding import EmbeddingBagCollectionInterface, EmbeddingCollectionInterface


@dataclass
class QualNameMetadata:
    """What a factory says of a method.

    Attributes:
        need_preproc: Whether its inputs are processed first.
    """

    need_preproc: bool


@dataclass
class BatchingMetadata:
    """How an input is batched.

    Attributes:
        type: Its kind, such as ``"dense"`` or ``"sparse"``.
        device: The type of the device that it goes to.
        pinned: The suffixes of its tensors that go through page-locked memory; ``""`` is the input itself.
    """

    type: str
    device: str
    pinned: list[str]


class PredictFactory(ABC):
    """Makes a model with its weights, and says how to call it."""

    @abstractmethod
    def create_predict_module(self) -> nn.Module:
        """Return the model with its weights."""

    @abstractmethod
    def batching_metadata(self) -> dict[str, BatchingMetadata]:
        """Return how each input is batched."""

    def batching_metadata_json(self) -> str:
        """Return ``batching_metadata`` as JSON."""
        return json.dumps({name: asdict(about) for name, about in self.batching_metadata().items()})

    @abstractmethod
    def result_metadata(self) -> str:
        """Return the kind of the results."""

    @abstractmethod
    def run_weights_independent_tranformations(self, predict_module: nn.Module) -> nn.Module:
        """Return the model, changed in ways that do not depend on its weights."""

    @abstractmethod
    def run_weights_dependent_transformations(self, predict_module: nn.Module) -> nn.Module:
        """Return the model, changed in ways that depend on its weights."""

    def qualname_metadata(self) -> dict[str, QualNameMetadata]:
        """Return what there is to say of methods."""
        return {}

    def qualname_metadata_json(self) -> str:
        """Return ``qualname_metadata`` as JSON."""
        return json.dumps({name: asdict(about) for name, about in self.qualname_metadata().items()})

    def model_inputs_data(self) -> dict[str, Any]:
        """Return data to make inputs for benchmarks of."""
        return {}


class PredictModule(nn.Module):
    """A model behind a dict of tensors; subclasses define ``predict_forward``.

    Args:
        module: The model, which is put into eval mode. It gives the state dict's names.
        device: Where forward calls run; None is the present CUDA device.
    """

    def __init__(self, module: nn.Module, device: str | None = None) -> None:
        super().__init__()
        self._module = module.eval()
        self._device = None if device is None else torch.device(device)

    @property
    def predict_module(self) -> nn.Module:
        """The model."""
        return self._module

    def predict_forward(self, batch: dict[str, Tensor]) -> Any:
        """Call the model with a batch."""
        raise NotImplementedError(f"{type(self).__name__}: predict_forward is not defined")

    def forward(self, batch: dict[str, Tensor]) -> Any:
        """Call ``predict_forward`` in inference mode."""
        if self._device is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        with torch.inference_mode():
            return self.predict_forward(batch)

    def state_dict(  # type: ignore[override]
        self, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Return the model's state dict."""
        given: dict[str, Any] = {} if destination is None else {"destination": destination}
        return self._module.state_dict(**given, prefix=prefix, keep_vars=keep_vars)


def quantize_feature(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs with float32 and float64 tensors in halves: a forward pre-hook."""
    del module
    return tuple(
        given.half() if isinstance(given, Tensor) and given.dtype in (torch.float32, torch.float64) else given
        for given in inputs
    )


def quantize_dense(
    predict_module: PredictModule,
    dtype: torch.dtype,
    additional_embedding_module_type: Sequence[type[nn.Module]] = (),
) -> nn.Module:
    """Put a model's children other than collections into halves, in place.

    Args:
        predict_module: The model behind a dict of tensors.
        dtype: ``torch.half``.
        additional_embedding_module_type: Further types that stay as they are.

    Raises:
        ValueError: Another dtype.
    """
    if dtype is not torch.half:
        raise ValueError(f"dtype: got {dtype}, expected torch.half")
    kept = (EmbeddingBagCollectionInterface, EmbeddingCollectionInterface)
    for child in predict_module.predict_module.children():
        if not isinstance(child, kept) and type(child) not in additional_embedding_module_type:
            child.half().register_forward_pre_hook(cast(Any, quantize_feature))
    return predict_module
