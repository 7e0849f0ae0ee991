"""Jagged and keyed data types."""

import recsys.jagged.pytrees  # noqa: F401  (makes the types nodes of pytrees)
