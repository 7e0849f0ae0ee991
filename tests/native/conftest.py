from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.native.tool import NativeModel


@pytest.fixture(scope="module")
def native() -> Iterator[NativeModel]:
    """The program; the model that it holds is the last one that was opened."""
    model = NativeModel()
    yield model
    assert model.close() == 0
