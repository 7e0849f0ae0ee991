"""DLRM's arithmetic, its tracing, and its agreement with TorchRec's.

Shape letters: B batch, F features, D embedding dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from recsys import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from recsys.kernels.operators import interaction, why_missing
from recsys.models.dlrm import DLRM, DenseArch, InteractionArch, OverArch, SparseArch

_DIM = 8
_KEYS = ["f1", "f2", "f3"]


def _tables() -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(name="t1", embedding_dim=_DIM, num_embeddings=20, feature_names=["f1", "f3"]),
        EmbeddingBagConfig(
            name="t2", embedding_dim=_DIM, num_embeddings=30, feature_names=["f2"], pooling=PoolingType.MEAN
        ),
    ]


def _dlrm() -> DLRM:
    torch.manual_seed(0)
    return DLRM(
        EmbeddingBagCollection(tables=_tables()),
        dense_in_features=5,
        dense_arch_layer_sizes=[16, _DIM],
        over_arch_layer_sizes=[12, 6, 1],
    )


def _inputs(num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    lengths = torch.randint(0, 4, (len(_KEYS) * num_rows,), generator=generator)
    values = torch.randint(0, 20, (int(lengths.sum()),), generator=generator)
    return torch.randn(num_rows, 5, generator=generator), lengths, values


class _PlainTensors(nn.Module):
    """The model as the exporter sees it: tensors in, a tensor out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, dense: Tensor, lengths: Tensor, values: Tensor) -> Tensor:
        logits: Tensor = self.model(dense, KeyedJaggedTensor(keys=_KEYS, values=values, lengths=lengths))
        return logits


@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_interaction_is_every_pair_in_order(num_rows: int) -> None:
    dense, sparse = torch.randn(num_rows, _DIM), torch.randn(num_rows, 3, _DIM)
    result = InteractionArch(3)(dense, sparse)
    assert result.shape == (num_rows, _DIM + 3 + 3)
    for row in range(num_rows):
        vectors = [dense[row], *sparse[row]]
        pairs = [torch.dot(a, b) for a, b in itertools.combinations(vectors, 2)]
        torch.testing.assert_close(result[row], torch.cat([dense[row], torch.stack(pairs)]))


@pytest.mark.parametrize("num_features", [1, 3, 26])
def test_gradients_of_the_interaction_are_autograds(num_features: int) -> None:
    arch = InteractionArch(num_features).double()
    given = [
        torch.randn(5, _DIM, dtype=torch.float64),
        torch.randn(5, num_features, _DIM, dtype=torch.float64),
    ]
    factors = torch.randn(5, arch(*given).size(1), dtype=torch.float64)

    def gradients(pairs_of: Callable[[Tensor], Tensor] | None) -> list[Tensor]:
        dense, sparse = (part.clone().requires_grad_() for part in given)
        if pairs_of is None:
            result = arch(dense, sparse)
        else:
            result = torch.cat((dense, pairs_of(torch.cat((dense.unsqueeze(1), sparse), dim=1))), dim=1)
        (result * factors).sum().backward()
        assert dense.grad is not None
        assert sparse.grad is not None
        return [dense.grad, sparse.grad]

    def by_autograd(vectors: Tensor) -> Tensor:
        return torch.bmm(vectors, vectors.mT).flatten(1)[:, arch.pair_indices]

    torch.testing.assert_close(gradients(None), gradients(by_autograd))


@pytest.mark.parametrize("num_features", [1, 3, 26])
@pytest.mark.parametrize("is_strided", [False, True])
def test_the_native_interaction_is_that_of_torch(
    num_features: int, is_strided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if interaction() is None:
        pytest.skip(why_missing())
    arch = InteractionArch(num_features)
    given = [torch.randn(70, _DIM), torch.randn(70, num_features, 2 * _DIM)[:, :, :_DIM]]
    if not is_strided:
        given[1] = given[1].contiguous()
    factors = torch.randn(70, arch(*given).size(1))

    def found() -> list[Tensor]:
        dense, sparse = (part.detach().requires_grad_() for part in given)
        result = arch(dense, sparse)
        first = torch.autograd.grad((result * factors).sum(), (dense, sparse), create_graph=True)
        second = torch.autograd.grad(first[1].square().sum(), (dense, sparse))
        return [result, *first, *second]

    native = found()
    assert type(native[0].grad_fn).__name__ == "_InteractionBackward"
    monkeypatch.setattr("recsys.models.dlrm.interaction", lambda: None)
    torch.testing.assert_close(found(), native)


def test_the_interaction_can_be_differentiated_twice_by_function_and_by_row() -> None:
    arch = InteractionArch(2).double()
    dense = torch.randn(3, _DIM, dtype=torch.float64, requires_grad=True)
    sparse = torch.randn(3, 2, _DIM, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(arch, (dense, sparse))

    def of_row(dense: Tensor, sparse: Tensor) -> Tensor:
        return arch(dense.unsqueeze(0), sparse.unsqueeze(0)).square().sum()

    arch(dense, sparse).square().sum().backward()
    by_row = torch.func.vmap(torch.func.grad(of_row))(dense.detach(), sparse.detach())
    torch.testing.assert_close(by_row, dense.grad)


def test_interaction_without_features_is_the_dense_vector() -> None:
    dense = torch.randn(3, _DIM)
    assert InteractionArch(0)(dense, torch.empty(3, 0, _DIM)) is dense


def test_interaction_indices_are_in_no_checkpoint_and_survive_the_meta_device() -> None:
    with torch.device("meta"):
        arch = InteractionArch(2)
    assert arch.state_dict() == {}
    assert arch.pair_indices.tolist() == [1, 2, 5]


def test_sparse_arch_orders_features_by_table() -> None:
    ebc = EmbeddingBagCollection(tables=_tables())
    _, lengths, values = _inputs(4)
    kjt = KeyedJaggedTensor(keys=_KEYS, values=values, lengths=lengths)
    arch = SparseArch(ebc)
    assert arch.sparse_feature_names == ["f1", "f3", "f2"]
    pooled = ebc(kjt).to_dict()
    torch.testing.assert_close(arch(kjt), torch.stack([pooled[name] for name in ["f1", "f3", "f2"]], dim=1))


def test_dense_and_over_arch_against_plain_linear_algebra() -> None:
    dense_arch, over_arch = DenseArch(5, [6, 4]), OverArch(4, [3, 1])
    x = torch.randn(7, 5)
    state = dense_arch.state_dict()
    hidden = x
    for i in range(2):
        weight, bias = state[f"model._mlp.{i}._linear.weight"], state[f"model._mlp.{i}._linear.bias"]
        hidden = (hidden @ weight.T + bias).clamp(min=0)
    torch.testing.assert_close(dense_arch(x), hidden)
    over = over_arch.state_dict()
    hidden = (hidden @ over["model.0._mlp.0._linear.weight"].T + over["model.0._mlp.0._linear.bias"]).clamp(
        min=0
    )
    torch.testing.assert_close(
        over_arch(dense_arch(x)), hidden @ over["model.1.weight"].T + over["model.1.bias"]
    )


@pytest.mark.parametrize("num_rows", [0, 1, 2, 65])
def test_fx_trace_holds_for_every_batch_size(num_rows: int) -> None:
    model = _PlainTensors(_dlrm())
    traced = fx.symbolic_trace(model)
    inputs = _inputs(num_rows)
    with torch.no_grad():
        expected = model(*inputs)
        assert expected.shape == (num_rows, 1)
        assert torch.equal(traced(*inputs), expected)


def test_the_dense_path_is_compiled_and_keeps_its_names() -> None:
    model = _dlrm()
    names, (dense, lengths, values) = list(model.state_dict()), _inputs(3)
    kjt = KeyedJaggedTensor(keys=_KEYS, values=values, lengths=lengths)
    expected = model(dense, kjt)
    model.compile_dense_path("default")
    parts = {name for name, part in model.named_children() if part._compiled_call_impl is not None}
    assert parts == {"dense_arch", "inter_arch", "over_arch"}
    assert list(model.state_dict()) == names
    with torch.compiler.set_stance("force_eager"):  # compilers are torch's matter, and take long
        assert torch.equal(model(dense, kjt), expected)


@pytest.mark.parametrize(
    ("dims", "dense_sizes", "over_sizes", "text"),
    [
        pytest.param((8, 4), [8], [4, 1], "embedding_dim.*'b': 4.*the same for all", id="dims-differ"),
        pytest.param(
            (8, 8), [16], [4, 1], r"dense_arch_layer_sizes: got \[16\].*8", id="dense-ends-elsewhere"
        ),
        pytest.param((8, 8), [], [4, 1], r"dense_arch_layer_sizes: got \[\]", id="no-dense-layer"),
        pytest.param((8, 8), [8], [1], r"over_arch_layer_sizes: got \[1\]", id="one-over-layer"),
    ],
)
def test_sizes_that_do_not_fit(
    dims: tuple[int, int], dense_sizes: list[int], over_sizes: list[int], text: str
) -> None:
    ebc = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=3, feature_names=[f"f_{name}"])
            for name, dim in zip("ab", dims, strict=True)
        ]
    )
    with pytest.raises(ValueError, match=text):
        DLRM(ebc, 5, dense_sizes, over_sizes)


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_torchrec_weights_load_and_give_its_outputs() -> None:
    torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed", exc_type=ImportError)
    peer_dlrm = pytest.importorskip("torchrec.models.dlrm", reason="torchrec is not installed").DLRM
    pooling = {PoolingType.SUM: torchrec.PoolingType.SUM, PoolingType.MEAN: torchrec.PoolingType.MEAN}
    torch.manual_seed(1)
    peer = peer_dlrm(
        torchrec.EmbeddingBagCollection(
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=table.name,
                    embedding_dim=table.embedding_dim,
                    num_embeddings=table.num_embeddings,
                    feature_names=table.feature_names,
                    pooling=pooling[table.pooling],
                )
                for table in _tables()
            ]
        ),
        dense_in_features=5,
        dense_arch_layer_sizes=[16, _DIM],
        over_arch_layer_sizes=[12, 6, 1],
    )
    ours = _dlrm()
    assert list(ours.state_dict()) == list(peer.state_dict())
    dense, lengths, values = _inputs(33)
    kjt = KeyedJaggedTensor(keys=_KEYS, values=values, lengths=lengths)
    peer_kjt = torchrec.KeyedJaggedTensor(keys=_KEYS, values=values, lengths=lengths)
    expected = peer(dense, peer_kjt)
    assert not torch.allclose(ours(dense, kjt), expected, atol=1e-3)
    ours.load_state_dict(peer.state_dict(), strict=True)
    torch.testing.assert_close(ours(dense, kjt), expected, rtol=1e-6, atol=1e-6)
    vectors = torch.randn(4, _DIM), torch.randn(4, 3, _DIM)
    torch.testing.assert_close(ours.inter_arch(*vectors), peer.inter_arch(*vectors), rtol=1e-6, atol=1e-6)
