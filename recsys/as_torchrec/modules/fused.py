"""Collections whose tables are updated in the backward pass from the start, by TorchRec's names.

``apply_optimizer_in_backward`` does the same to any collection, and is what TorchRec advises.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from recsys.configs import EmbeddingBagConfig, EmbeddingConfig
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.optim.combined import CombinedOptimizer
from recsys.optim.fused_config import FusedConfig
from recsys.optim.in_backward import apply_optimizer_in_backward
from recsys.optim.keyed import KeyedOptimizer


class _InBackward(CombinedOptimizer):
    """The optimizers of tables, whose steps the backward pass takes."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Do nothing but evaluate the closure."""
        return None if closure is None else closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: gradients are dropped in the backward pass."""


class _Fused:
    """Tables that are updated in the backward pass."""

    def _fuse(self, optimizer_type: type[Optimizer], kwargs: dict[str, Any], location: object) -> None:
        """Update the tables in the backward pass.

        Raises:
            ValueError: The optimizer is not supported, or there is a location.
        """
        if location is not None:
            raise ValueError(f"location: got {location}, expected None: tables lie on their device")
        FusedConfig.from_in_backward(optimizer_type, kwargs)  # refuses what lookups do not support
        optims = []
        for name, parameter in cast(nn.Module, self).named_parameters():
            apply_optimizer_in_backward(optimizer_type, [parameter], kwargs)
            (optimizer,) = parameter._in_backward_optimizers  # type: ignore[attr-defined]
            optims.append(KeyedOptimizer({name: parameter}, optimizer.state, optimizer.param_groups))
        self._optimizer_type, self._optimizer_kwargs, self._optim = (
            optimizer_type,
            kwargs,
            _InBackward(optims),
        )

    def optimizer_type(self) -> type[Optimizer]:
        """Return the argument."""
        return self._optimizer_type

    def optimizer_kwargs(self) -> dict[str, Any]:
        """Return the argument."""
        return self._optimizer_kwargs

    def fused_optimizer(self) -> KeyedOptimizer:
        """Return the optimizer, for its state and learning rate; its ``step`` does nothing."""
        return self._optim


class FusedEmbeddingBagCollection(_Fused, EmbeddingBagCollection):
    """Pooled embeddings of tables that are updated in the backward pass.

    Args:
        tables: The tables.
        optimizer_type: As for ``apply_optimizer_in_backward``, of those that lookups support.
        optimizer_kwargs: Its arguments.
        is_weighted: Whether every ID comes with a weight.
        device: Where the tables lie.
        location: FBGEMM's memory of a table; only None is taken.

    Raises:
        ValueError: The optimizer is not supported, or there is a location.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingBagConfig],
        optimizer_type: type[Optimizer],
        optimizer_kwargs: dict[str, Any],
        is_weighted: bool = False,
        device: torch.device | str | None = None,
        location: object | None = None,
    ) -> None:
        super().__init__(tables, is_weighted, device)
        self._fuse(optimizer_type, optimizer_kwargs, location)


class FusedEmbeddingCollection(_Fused, EmbeddingCollection):
    """Sequence embeddings of tables that are updated in the backward pass.

    Args:
        tables: The tables.
        optimizer_type: As for ``apply_optimizer_in_backward``, of those that lookups support.
        optimizer_kwargs: Its arguments.
        device: Where the tables lie.
        need_indices: Return each row's ID too, as the weights of the JaggedTensors.
        location: FBGEMM's memory of a table; only None is taken.

    Raises:
        ValueError: The optimizer is not supported, or there is a location.
    """

    def __init__(
        self,
        tables: Sequence[EmbeddingConfig],
        optimizer_type: type[Optimizer],
        optimizer_kwargs: dict[str, Any],
        device: torch.device | str | None = None,
        need_indices: bool = False,
        location: object | None = None,
    ) -> None:
        super().__init__(tables, device, need_indices)
        self._fuse(optimizer_type, optimizer_kwargs, location)


def fuse_embedding_optimizer(
    model: nn.Module,
    optimizer_type: type[Optimizer],
    optimizer_kwargs: dict[str, Any],
    device: torch.device,
    location: object | None = None,
) -> nn.Module:
    """Replace a model's collections by newly initialized ones, whose tables are updated in the backward pass.

    Args:
        model: The model, which is changed; a collection that is the model itself is replaced in the result.
        optimizer_type: As for ``FusedEmbeddingBagCollection``.
        optimizer_kwargs: Its arguments.
        device: Where the tables lie.
        location: Only None is taken.
    """

    def fused(module: nn.Module) -> nn.Module | None:
        if isinstance(module, EmbeddingBagCollection):
            return FusedEmbeddingBagCollection(
                module.embedding_bag_configs(),
                optimizer_type,
                optimizer_kwargs,
                module.is_weighted(),
                device,
                location,
            )
        if isinstance(module, EmbeddingCollection):
            return FusedEmbeddingCollection(
                module.embedding_configs(),
                optimizer_type,
                optimizer_kwargs,
                device,
                module.need_indices(),
                location,
            )
        return None

    def replace(parent: nn.Module) -> None:
        for name, child in parent.named_children():
            made = fused(child)
            if made is None:
                replace(child)
            else:
                parent._modules[name] = made

    whole = fused(model)
    if whole is not None:
        return whole
    replace(model)
    return model
