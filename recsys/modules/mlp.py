"""Layers one after the other, by TorchRec's names; the state dict's names are TorchRec's too.

Shape letters: B batch.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

import inspect
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from recsys.modules.activation import SwishLayerNorm

Activation = nn.Module | Callable[[Tensor], Tensor]
ActivationFactory = Callable[[], nn.Module]
_BY_NAME: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "sigmoid": torch.sigmoid}


class Perceptron(nn.Module):
    """One linear layer and an activation: ``[B, in_size]`` to ``[B, out_size]``.

    Args:
        in_size: Width of the input.
        out_size: Width of the result.
        bias: Whether the linear layer adds a bias.
        activation: Maps a tensor to one of the same shape.
        device: Where the weights lie.
        dtype: Type of the weights.
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        bias: bool = True,
        activation: Activation = torch.relu,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self._linear = nn.Linear(in_size, out_size, bias=bias, device=device, dtype=dtype)
        self._activation_fn = activation

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map ``[B, in_size]`` to ``[B, out_size]``."""
        hidden = self._linear(input)
        # In place, the result needs no memory that is not in the cache. Graphs keep torch.relu.
        if not torch.jit.is_scripting():  # noqa: SIM102 (TorchScript compiles what is not behind this alone)
            if self.training and self._activation_fn is torch.relu:
                return torch.relu_(hidden)
        result: Tensor = self._activation_fn(hidden)
        return result


def is_rectified(layer: Perceptron) -> bool:
    """Return whether a layer adds a bias, and its activation is ReLU."""
    return layer._linear.bias is not None and layer._activation_fn is torch.relu


class MLP(nn.Module):
    """Perceptrons one after the other: ``[B, in_size]`` to ``[B, layer_sizes[-1]]``.

    Args:
        in_size: Width of the input.
        layer_sizes: The width of each layer's result.
        bias: Whether the linear layers add a bias.
        activation: ``"relu"``, ``"sigmoid"`` or ``"swish_layernorm"``; a function of a tensor; a module, which all
            layers share; or what makes a module without arguments, called once for each layer.
        device: Where the weights lie.
        dtype: Type of the weights.
        activation_on_last: Whether the last layer has the activation too.

    Raises:
        ValueError: The activation is none of these.
    """

    def __init__(  # noqa: PLR0913 (TorchRec's signature)
        self,
        in_size: int,
        layer_sizes: Sequence[int],
        bias: bool = True,
        activation: str | ActivationFactory | Activation = torch.relu,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        activation_on_last: bool = True,
    ) -> None:
        super().__init__()
        last = len(layer_sizes) - 1
        self._mlp = nn.Sequential(
            *(
                Perceptron(
                    width,
                    size,
                    bias,
                    _activation(activation, size, device, dtype)
                    if activation_on_last or i < last
                    else nn.Identity(),
                    device,
                    dtype,
                )
                for i, (width, size) in enumerate(pairwise([in_size, *layer_sizes]))
            )
        )

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map ``[B, in_size]`` to ``[B, layer_sizes[-1]]``."""
        hidden: Tensor = self._mlp(input)
        return hidden


def extract_module_or_tensor_callable(module_or_callable: ActivationFactory | Activation) -> Activation:
    """Return a module or a function of a tensor as it is, and of what makes a module the module that it makes.

    Raises:
        ValueError: What takes no arguments makes something else than a module.
    """
    if isinstance(module_or_callable, nn.Module) or not _needs_nothing(module_or_callable):
        return module_or_callable  # type: ignore[return-value]
    made: object = module_or_callable()  # type: ignore[call-arg]
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"activation: got {type(made).__name__} from {module_or_callable!r}, expected a torch.nn.Module: what "
            "takes no arguments makes the module of each layer"
        )
    return made


def _activation(
    activation: str | ActivationFactory | Activation,
    size: int,
    device: torch.device | None,
    dtype: torch.dtype,
) -> Activation:
    """Return the activation of one layer of ``size`` units."""
    if not isinstance(activation, str):
        return extract_module_or_tensor_callable(activation)
    if activation == "swish_layernorm":
        return SwishLayerNorm(size, device).to(dtype)
    if activation not in _BY_NAME:
        raise ValueError(
            f"activation: got {activation!r}, expected one of {[*_BY_NAME, 'swish_layernorm']}, a module or a function"
        )
    return _BY_NAME[activation]


def _needs_nothing(function: Callable[..., object]) -> bool:
    """Return whether a function can be called without arguments; torch's own, which name none, cannot."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
