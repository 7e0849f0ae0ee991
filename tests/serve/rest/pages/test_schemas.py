"""What the pages say of inputs."""

from __future__ import annotations

import pytest

from recsys.inputs.signature import IdPolicy, SparseInput, TableUse
from serve.rest.pages.schemas import ids_text


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        ([IdPolicy.REJECT, IdPolicy.HASH], "0 to 8"),
        ([IdPolicy.HASH], "any; taken modulo the rows"),
        ([IdPolicy.ZERO], "any; others than rows read zeros"),
        ([IdPolicy.MAPPED], "any; the model maps them to rows"),
        ([IdPolicy.FMIX64], "any; hashed to rows by fmix64"),
        ([IdPolicy.HASH, IdPolicy.FMIX64], "any; hashed to rows by fmix64"),
    ],
)
def test_which_ids_an_input_takes(policies: list[IdPolicy], text: str) -> None:
    uses = tuple(TableUse(name=policy.value, num_embeddings=9, id_policy=policy) for policy in policies)
    assert ids_text(SparseInput(name="f", tables=uses, pooling="sum")) == text
