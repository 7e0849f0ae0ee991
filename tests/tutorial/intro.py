"""The steps of TorchRec's introduction tutorial up to sharding, on whichever library is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch


def run(library: str) -> dict[str, Any]:
    """Take the steps; the library's name is all that differs.

    Returns:
        what the tutorial shows, by name.
    """
    torchrec: Any = import_module(library)
    shown: dict[str, Any] = {}

    ebc = torchrec.EmbeddingBagCollection(
        device="cpu",
        tables=[
            torchrec.EmbeddingBagConfig(
                name=f"{feature}_table",
                embedding_dim=64,
                num_embeddings=4096,
                feature_names=[feature],
                pooling=torchrec.PoolingType.SUM,
            )
            for feature in ("product", "user")
        ],
    )
    shown["module"] = repr(ebc)
    shown["state"] = {name: list(weight.shape) for name, weight in ebc.state_dict().items()}

    # One feature of a batch of two: IDs [1, 2, 1] and [5].
    product = torchrec.JaggedTensor(values=torch.tensor([1, 2, 1, 5]), lengths=torch.tensor([3, 1]))
    user = torchrec.JaggedTensor(values=torch.tensor([2, 3, 4, 1]), lengths=torch.tensor([2, 2]))
    shown["product offsets"] = product.offsets().tolist()
    shown["product"] = str(product)
    shown["dense"] = [row.tolist() for row in product.to_dense()]
    from_offsets = torchrec.JaggedTensor(values=product.values(), offsets=product.offsets())
    shown["lengths from offsets"] = from_offsets.lengths().tolist()
    from_rows = torchrec.JaggedTensor.from_dense([torch.tensor([1.0, 2.0, 1.0]), torch.tensor([5.0])])
    shown["from rows"] = str(from_rows)

    # Both features.
    kjt = torchrec.KeyedJaggedTensor.from_jt_dict({"product": product, "user": user})
    shown["keys"] = kjt.keys()
    shown["lengths"] = kjt.lengths().tolist()
    shown["offsets"] = kjt.offsets().tolist()
    shown["values"] = kjt.values().tolist()
    shown["kjt"] = str(kjt)
    shown["user"] = str(kjt["user"])
    shown["parts"] = {key: jagged.values().tolist() for key, jagged in kjt.to_dict().items()}

    with torch.no_grad():
        for k, weight in enumerate(ebc.parameters()):
            weight.copy_(torch.linspace(-1, 1 + k, weight.numel()).view_as(weight))
    result = ebc(kjt)
    shown["result keys"] = result.keys()
    shown["result shape"] = list(result.values().shape)
    shown["result"] = result.values()
    shown["result by key"] = {key: list(tensor.shape) for key, tensor in result.to_dict().items()}
    return shown
