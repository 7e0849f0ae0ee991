"""Checks of modules' widths, and lists of modules made from one, by TorchRec's names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn


def get_module_output_dimension(module: Callable[[Tensor], Tensor] | nn.Module, in_features: int) -> int:
    """Return the width of a module's output for an input of ``in_features`` zeros; the module is called."""
    return int(module(torch.zeros(1, in_features)).size(-1))


def check_module_output_dimension(
    module: Iterable[nn.Module] | nn.Module, in_features: int, out_features: int
) -> bool:
    """Return whether a module's output, or that of every module of a list, is ``out_features`` wide."""
    if isinstance(module, nn.Module) and not isinstance(module, nn.ModuleList):
        return get_module_output_dimension(module, in_features) == out_features
    return all(check_module_output_dimension(inner, in_features, out_features) for inner in module)


def init_mlp_weights_xavier_uniform(m: nn.Module) -> None:
    """Initialize a linear layer: weights by Xavier's rule, the bias with zeros. Other modules are left alone."""
    if isinstance(m, nn.Linear):
        nn.init.xavier_uniform_(m.weight)
        if m.bias is not None:
            nn.init.zeros_(m.bias)


def construct_modulelist_from_single_module(module: nn.Module, sizes: tuple[int, ...]) -> nn.Module:
    """Return copies of a module in nested lists of the given sizes, each with newly initialized linear layers."""
    if len(sizes) == 1:
        return nn.ModuleList(
            copy.deepcopy(module).apply(init_mlp_weights_xavier_uniform) for _ in range(sizes[0])
        )
    return nn.ModuleList(construct_modulelist_from_single_module(module, sizes[1:]) for _ in range(sizes[0]))


def convert_list_of_modules_to_modulelist(modules: Sequence[nn.Module], sizes: tuple[int, ...]) -> nn.Module:
    """Return nested lists of modules as nested ``ModuleList``s.

    Raises:
        ValueError: A list has another size.
    """
    if len(modules) != sizes[0]:
        raise ValueError(f"modules: got {len(modules)}, expected {sizes[0]}")
    if len(sizes) == 1:
        return nn.ModuleList(modules)
    return nn.ModuleList(
        convert_list_of_modules_to_modulelist(list(m) if isinstance(m, nn.ModuleList) else m, sizes[1:])  # type: ignore[arg-type]
        for m in modules
    )
