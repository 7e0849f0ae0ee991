from __future__ import annotations

from collections.abc import Iterator

import pytest

from recsys.kernels import operators
from tests.native.tool import NativeModel

ISAS = ("plain", "avx2", "avx512", "amx")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction set that this processor has."""
    module = operators._usable()
    best = module.isa()
    try:
        module.force_isa(request.param)
    except RuntimeError as error:
        # Not where it is there and computes wrong numbers.
        if "expected at most" not in str(error):
            raise
        pytest.skip(str(error))
    yield request.param
    module.force_isa(best)


@pytest.fixture(scope="module")
def native() -> Iterator[NativeModel]:
    """The program; the model that it holds is the last one that was opened."""
    model = NativeModel()
    yield model
    assert model.close() == 0
