"""Optimizers that step during the backward pass, parameter by parameter, and their marks.

The marks are those of ``torch.distributed.optim._apply_optimizer_in_backward``, so parameters marked by it
(or by TorchRec's function of the same name, which calls it) are supported too: ``_optimizer_classes``,
``_optimizer_kwargs`` and ``_in_backward_optimizers``, lists of equal length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from recsys.optim.fused_config import FusedConfig


def apply_optimizer_in_backward(
    optimizer_class: type[Optimizer],
    params: Iterable[nn.Parameter],
    optimizer_kwargs: Mapping[str, Any],
) -> None:
    """Update parameters during the backward pass, as soon as their gradients are available.

    Tables that are sharded afterwards get the optimizer inside their lookups; see
    ``FusedConfig.from_in_backward`` for the supported classes. Unsharded parameters get an optimizer each. It
    steps when the gradient has been accumulated and the hooks that were registered earlier with
    ``register_post_accumulate_grad_hook`` have run; then the gradient is dropped. For parameters of
    ``DistributedDataParallel`` torch steps it after averaging, which torch 2.13 supports only on CUDA.

    Unlike torch's function, this keeps no parameter alive: an unsharded table is freed once it is sharded.

    Called twice for an unsharded parameter, both optimizers step, in the order of the calls; a table with two cannot
    be sharded. Tables that are sharded with the kernel ``dense`` lose their optimizers, as in TorchRec: another one
    trains them.

    Args:
        optimizer_class: ``torch.optim.SGD``, ``torch.optim.Adagrad``, ``torch.optim.Adam``,
            ``RowWiseAdagrad``; for unsharded parameters, any class.
        params: The parameters.
        optimizer_kwargs: Arguments of the class. In lookups, those left out are FBGEMM's, not the class's.

    Raises:
        ValueError: A parameter needs no gradient.
    """
    # Imported here, because importing the package compiles a dozen functions.
    from torch.distributed.optim.apply_optimizer_in_backward import param_to_optim_hook_handle_map

    chosen = list(params)
    for i, param in enumerate(chosen):
        if not param.requires_grad:
            raise ValueError(
                f"params[{i}]: got a parameter of shape {list(param.shape)} that needs no gradient; leave it out"
            )
    for param in chosen:
        known = list(getattr(param, "_in_backward_optimizers", [])) if _marks(param) else []
        kwargs = [*getattr(param, "_optimizer_kwargs", []), dict(optimizer_kwargs)]
        mark_in_backward(param, *known, optimizer_class([param], **optimizer_kwargs))
        param._optimizer_classes = [*_marks(param), optimizer_class]  # type: ignore[attr-defined]
        param._optimizer_kwargs = kwargs  # type: ignore[attr-defined]
        if known:
            continue
        handle = param.register_post_accumulate_grad_hook(_step)
        # DistributedDataParallel finds the hook here, removes it, and steps itself.
        param_to_optim_hook_handle_map[param] = [handle]


def _step(param: Tensor) -> None:
    for optimizer in param._in_backward_optimizers:  # type: ignore[attr-defined]
        optimizer.step()
    param.grad = None


def fused_config_of(param: Tensor) -> FusedConfig | None:
    """Return the lookup's config for a marked parameter; None if it is not marked.

    Raises:
        ValueError: More than one optimizer, or one that lookups do not support.
    """
    classes = _marks(param)
    if not classes:
        return None
    if len(classes) > 1:
        raise ValueError(
            f"parameter of shape {list(param.shape)}: got {len(classes)} optimizers in the backward pass "
            f"({[c.__qualname__ for c in classes]}), expected one; apply one only"
        )
    kwargs: dict[str, Any] = param._optimizer_kwargs[0]  # type: ignore[attr-defined]
    return FusedConfig.from_in_backward(classes[0], kwargs)


def mark_in_backward(param: Tensor, *optimizers: Optimizer) -> None:
    """Mark a parameter as updated in the backward pass, for ``in_backward_optimizer_filter``.

    Args:
        param: A shard's weight.
        optimizers: The optimizers that update it, for code that finds them through the parameter.
    """
    param._in_backward_optimizers = list(optimizers)  # type: ignore[attr-defined]


def in_backward_optimizer_filter(
    named_parameters: Iterable[tuple[str, nn.Parameter]], include: bool = False
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters for an ordinary optimizer, or the others.

    Args:
        named_parameters: Names and parameters, as ``model.named_parameters()`` yields them.
        include: True for parameters updated in the backward pass, False for the others.
    """
    for name, param in named_parameters:
        if hasattr(param, "_in_backward_optimizers") == include:
            yield name, param


def _marks(param: Tensor) -> list[type[Optimizer]]:
    classes: list[type[torch.optim.Optimizer]] = getattr(param, "_optimizer_classes", [])
    return classes
