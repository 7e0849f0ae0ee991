"""What tests of the native kernels need."""

from __future__ import annotations

import pytest

from recsys.kernels import operators

needs_kernels = pytest.mark.skipif(
    bool(operators.why_missing()), reason="needs the native kernels; make native"
)
