"""DeepFM: a factorization machine over the features' vectors, beside a deep network.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction" (arXiv 1703.04247). The
first-order terms are a linear layer over the vectors, so that no second table of width 1 is needed.

Shape letters: B batch, D embedding dimension, F features, L labels, N width of the flat input.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.models.dlrm import is_trained
from recsys.modules.mlp import MLP, Perceptron, is_rectified


def pairwise_sum(vectors: Tensor) -> Tensor:
    """Return the sum of the products of all pairs of vectors, ``[B, F, D]`` to ``[B, D]``."""
    return _half_difference(vectors.sum(dim=1), vectors)


def _half_difference(total: Tensor, vectors: Tensor) -> Tensor:
    """Return half of the square of the vectors' sum less the sum of their squares, ``[B, D]``."""
    return 0.5 * (total * total - (vectors * vectors).sum(dim=1))


class _Logits(torch.autograd.Function):
    """A FactorizedNetwork's logits in training, as one step of autograd.

    Its gradients take fewer passes than those of the layers one by one: sums are kept, and memory is reused.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        """Return ``[B, L]``.

        Args:
            ctx: What ``backward`` gets.
            inputs: The features, the vectors, and weights as ``_logits`` takes them.
        """
        features, vectors, first, constant, second, over, *layers = inputs
        hidden = [features]
        for weight, bias in _pairs(layers):
            hidden.append(torch.addmm(bias, hidden[-1], weight.t()).relu_())
        total = vectors.sum(dim=1)
        products = _half_difference(total, vectors)
        ctx.num_inputs = len(inputs)
        ctx.save_for_backward(*inputs, total, products, *hidden[1:])
        logits = torch.addmm(constant, features, first.t())
        return logits.addmm_(products, second.t()).addmm_(hidden[-1], over.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs."""
        inputs, needed = ctx.saved_tensors[: ctx.num_inputs], ctx.needs_input_grad
        if torch.is_grad_enabled():  # for gradients of gradients
            wanted = [part for part, is_needed in zip(inputs, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(_logits(*inputs), wanted, gradient, create_graph=True))
            return tuple(next(found) if is_needed else None for is_needed in needed)
        return tuple(_gradients(gradient, inputs, needed, ctx.saved_tensors[ctx.num_inputs :]))


def _logits(
    features: Tensor,
    vectors: Tensor,
    first: Tensor,
    constant: Tensor,
    second: Tensor,
    over: Tensor,
    *layers: Tensor,
) -> Tensor:
    """Return what ``_Logits`` does, by operators that autograd knows."""
    hidden = features
    for weight, bias in _pairs(layers):
        hidden = torch.relu(functional.linear(hidden, weight, bias))
    logits = functional.linear(features, first, constant) + functional.linear(pairwise_sum(vectors), second)
    return logits + functional.linear(hidden, over)


def _gradients(
    gradient: Tensor, inputs: Sequence[Tensor], needed: Sequence[bool], kept: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradients of the inputs that need one, from that of the logits and what ``_Logits`` has kept."""
    features, vectors, first, _, second, over, *layers = inputs
    total, products, *outputs = kept
    found: list[Tensor | None] = [None] * len(inputs)
    if needed[1]:
        of_products = torch.mm(gradient, second).unsqueeze(1)
        found[1] = (total.unsqueeze(1) - vectors).mul_(of_products)
    transposed = gradient.t()
    for i, by in ((2, features), (4, products), (5, outputs[-1])):
        if needed[i]:
            found[i] = torch.mm(transposed, by)
    if needed[3]:
        found[3] = gradient.sum(dim=0)
    hidden = [features, *outputs]
    back = torch.mm(gradient, over)
    for i in reversed(range(len(outputs))):
        at = 6 + 2 * i
        torch.ops.aten.threshold_backward.grad_input(back, outputs[i], 0, grad_input=back)
        if needed[at]:
            found[at] = torch.mm(back.t(), hidden[i])
        if needed[at + 1]:
            found[at + 1] = back.sum(dim=0)
        if i or needed[0]:
            back = torch.mm(back, layers[2 * i])
    if needed[0]:
        found[0] = back.addmm_(gradient, first)
    return found


def _pairs(layers: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(layers[::2], layers[1::2], strict=True)


class FactorizedNetwork(nn.Module):
    """First- and second-order terms beside a deep network, to logits ``[B, L]``.

    Args:
        in_features: N.
        embedding_dim: D.
        num_labels: L.
        layer_sizes: Sizes of the deep layers.
    """

    def __init__(
        self, in_features: int, embedding_dim: int, num_labels: int, layer_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_labels)
        self.second_order = nn.Linear(embedding_dim, num_labels, bias=False)
        self.deep = MLP(in_features, layer_sizes)
        self.over = nn.Linear(layer_sizes[-1], num_labels, bias=False)

    def forward(self, features: Tensor, vectors: Tensor) -> Tensor:
        """Score a batch.

        Args:
            features: ``[B, N]``, the dense features and the flat vectors.
            vectors: ``[B, F, D]``.
        """
        if not torch.jit.is_scripting() and is_trained([features, vectors]) and self._is_plain(vectors):
            return self._logits_to_train(features, vectors)
        pairs = pairwise_sum(vectors)
        logits: Tensor = self.linear(features) + self.second_order(pairs) + self.over(self.deep(features))
        return logits

    @torch.jit.unused
    def _is_plain(self, vectors: Tensor) -> bool:
        """Return whether nothing but the layers' own operators runs: no hook, no other module, no other type."""
        if torch.is_autocast_enabled(vectors.device.type) or torch._C._are_functorch_transforms_active():
            return False
        waiting: list[nn.Module | None] = [self]
        while waiting:  # ``modules()`` takes several times as long, in each step
            part = waiting.pop()
            if not _is_own(part):
                return False
            waiting += part._modules.values()
        return self.linear.bias is not None and self.second_order.bias is None and self.over.bias is None

    @torch.jit.unused
    def _logits_to_train(self, features: Tensor, vectors: Tensor) -> Tensor:
        layers = [cast(Perceptron, layer)._linear for layer in self.deep._mlp]
        logits: Tensor = _Logits.apply(  # type: ignore[no-untyped-call]
            features,
            vectors,
            self.linear.weight,
            self.linear.bias,
            self.second_order.weight,
            self.over.weight,
            *(parameter for layer in layers for parameter in (layer.weight, layer.bias)),
        )
        return logits


_OWN_PARTS = (FactorizedNetwork, nn.Linear, MLP, nn.Sequential, Perceptron)


def _is_own(part: nn.Module | None) -> TypeGuard[nn.Module]:
    return (
        part is not None
        and type(part) in _OWN_PARTS
        and not (
            part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        )
        and "forward" not in vars(part)
        and (not isinstance(part, Perceptron) or is_rectified(part))
    )
