"""Cross networks: layers that multiply what they see with the first input, by TorchRec's names.

Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems"
(arXiv 2008.13535). Parameters have the names and shapes of TorchRec's, so its checkpoints load.

Shape letters: B batch, K experts, N width of the input, R rank.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from recsys.modules.mlp import Activation


def _check_at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: got {size}, expected 1 at least")


def _weights(num_layers: int, *shape: int) -> nn.ParameterList:
    return nn.ParameterList(
        nn.Parameter(nn.init.xavier_normal_(torch.empty(shape))) for _ in range(num_layers)
    )


def _zeros(num_layers: int, *shape: int) -> nn.ParameterList:
    return nn.ParameterList(nn.Parameter(torch.zeros(shape)) for _ in range(num_layers))


class _Crosses(nn.Module):
    """What cross networks have in common: lists of parameters, one entry for each layer."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights again; biases become zeros."""
        for name, of_layers in self.named_children():
            for parameter in of_layers.parameters() if isinstance(of_layers, nn.ParameterList) else ():
                if name == "bias":
                    parameter.zero_()
                else:
                    nn.init.xavier_normal_(parameter)


class CrossNet(_Crosses):
    """Cross layers of full rank: ``x' = x0 * (W x + b) + x``, ``[B, N]`` to ``[B, N]``.

    Args:
        in_features: N.
        num_layers: Number of layers.
    """

    def __init__(self, in_features: int, num_layers: int) -> None:
        super().__init__()
        self._num_layers = num_layers
        self.kernels = _weights(num_layers, in_features, in_features)
        self.bias = _zeros(num_layers, in_features, 1)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Cross ``[B, N]``."""
        crossed = input
        for i in range(self._num_layers):
            crossed = input * linear(crossed, self.kernels[i], self.bias[i].flatten()) + crossed
        return crossed


class LowRankCrossNet(_Crosses):
    """Cross layers whose matrix is a product of two of rank R: ``x' = x0 * (W (V x) + b) + x``.

    Args:
        in_features: N.
        num_layers: Number of layers.
        low_rank: R, at least 1.

    Raises:
        ValueError: The rank is below 1.
    """

    def __init__(self, in_features: int, num_layers: int, low_rank: int = 1) -> None:
        super().__init__()
        _check_at_least_one(low_rank=low_rank)
        self._num_layers = num_layers
        self.W_kernels = _weights(num_layers, in_features, low_rank)
        self.V_kernels = _weights(num_layers, low_rank, in_features)
        self.bias = _zeros(num_layers, in_features)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Cross ``[B, N]``."""
        crossed = input
        for i in range(self._num_layers):
            inner = linear(crossed, self.V_kernels[i])
            crossed = input * linear(inner, self.W_kernels[i], self.bias[i]) + crossed
        return crossed


class VectorCrossNet(_Crosses):
    """Cross layers of one vector each, as in the first DCN: ``x' = x0 * (w . x) + b + x``.

    Args:
        in_features: N.
        num_layers: Number of layers.
    """

    def __init__(self, in_features: int, num_layers: int) -> None:
        super().__init__()
        self._num_layers = num_layers
        self.kernels = _weights(num_layers, in_features, 1)
        self.bias = _zeros(num_layers, in_features, 1)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Cross ``[B, N]``."""
        crossed = input
        for i in range(self._num_layers):
            products = torch.matmul(crossed, self.kernels[i])
            crossed = input * products + self.bias[i].flatten() + crossed
        return crossed


class LowRankMixtureCrossNet(_Crosses):
    """Cross layers of several experts of low rank, mixed by a gate that all layers share.

    An expert gives ``x0 * (U g(C g(V x)) + b)``. With one expert there is no gate.

    Args:
        in_features: N.
        num_layers: Number of layers.
        num_experts: K, at least 1.
        low_rank: R, at least 1.
        activation: ``g``.

    Raises:
        ValueError: The number of experts or the rank is below 1.
    """

    def __init__(
        self,
        in_features: int,
        num_layers: int,
        num_experts: int = 1,
        low_rank: int = 1,
        activation: Activation = torch.relu,
    ) -> None:
        super().__init__()
        _check_at_least_one(num_experts=num_experts, low_rank=low_rank)
        self._num_layers = num_layers
        self._num_experts = num_experts
        self.U_kernels = _weights(num_layers, num_experts, in_features, low_rank)
        self.V_kernels = _weights(num_layers, num_experts, low_rank, in_features)
        self.bias = _zeros(num_layers, in_features, 1)
        self.gates = (
            nn.ModuleList(nn.Linear(in_features, 1, bias=False) for _ in range(num_experts))
            if num_experts > 1
            else None
        )
        self._activation = activation
        self.C_kernels = _weights(num_layers, num_experts, low_rank, low_rank)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Cross ``[B, N]``."""
        crossed = input
        for i in range(self._num_layers):
            experts = [input * self._expert(i, k, crossed) for k in range(self._num_experts)]
            if self.gates is None:
                crossed = experts[0] + crossed
            else:
                scores = torch.cat([gate(crossed) for gate in self.gates], dim=1)
                shares = torch.softmax(scores, dim=1).unsqueeze(2)
                crossed = torch.bmm(torch.stack(experts, dim=2), shares).flatten(1) + crossed
        return crossed

    def _expert(self, layer: int, expert: int, crossed: Tensor) -> Tensor:
        """Return what an expert multiplies the first input with, ``[B, N]``."""
        hidden = self._activation(linear(crossed, self.V_kernels[layer][expert]))
        hidden = self._activation(linear(hidden, self.C_kernels[layer][expert]))
        return linear(hidden, self.U_kernels[layer][expert], self.bias[layer].flatten())
