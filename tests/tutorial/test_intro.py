"""TorchRec's introduction tutorial runs on ours with only the import changed, and shows the same."""

from __future__ import annotations

import pytest
import torch

import recsys
from recsys import DataType
from recsys.quant import QuantEmbeddingBagCollection
from tests.support.helpers import bag
from tests.tutorial.intro import run


def test_it_shows_the_tutorials_numbers() -> None:
    shown = run("recsys")
    assert shown["product offsets"] == [0, 3, 4]
    assert shown["dense"] == [[1, 2, 1], [5]]
    assert shown["keys"] == shown["result keys"] == ["product", "user"]
    assert shown["lengths"] == [3, 1, 2, 2]
    assert shown["offsets"] == [0, 3, 4, 6, 8]
    assert shown["values"] == [1, 2, 1, 5, 2, 3, 4, 1]
    assert shown["kjt"] == (
        'KeyedJaggedTensor({\n    "product": [[1, 2, 1], [5]],\n    "user": [[2, 3], [4, 1]]\n})\n'
    )
    assert shown["result shape"] == [2, 128]
    assert shown["result by key"] == {"product": [2, 64], "user": [2, 64]}
    assert shown["state"] == {
        "embedding_bags.product_table.weight": [4096, 64],
        "embedding_bags.user_table.weight": [4096, 64],
    }


@pytest.mark.parametrize(("alignment", "row_bytes"), [(16, 80), (1, 68)])
def test_quantized_buffers_have_the_tutorials_size(alignment: int, row_bytes: int) -> None:
    tables = [bag("product_table", 4096, 64, ["product"]), bag("user_table", 4096, 64, ["user"])]
    ebc = recsys.EmbeddingBagCollection(tables)
    quantized = QuantEmbeddingBagCollection.from_float(ebc, data_type=DataType.INT8, row_alignment=alignment)
    for rows in quantized.state_dict().values():
        assert rows.dtype == torch.uint8
        assert list(rows.shape) == [4096, row_bytes]


@pytest.mark.peer
def test_it_shows_what_it_shows_on_torchrec() -> None:
    # Imported for the skip, and because it quiets TorchRec's own import.
    from tests.peer.torchrec_peer import torchrec

    ours, theirs = run("recsys"), run(torchrec.__name__)
    assert torch.equal(ours.pop("result"), theirs.pop("result"))
    assert ours == theirs
