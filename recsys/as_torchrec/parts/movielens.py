"""MovieLens's files and columns, by TorchRec's names. ``recsys.data.sources.movielens`` reads them."""

from __future__ import annotations

from collections.abc import Callable

RATINGS_FILENAME = "ratings.csv"
MOVIES_FILENAME = "movies.csv"

DEFAULT_RATINGS_COLUMN_NAMES = ["userId", "movieId", "rating", "timestamp"]
DEFAULT_MOVIES_COLUMN_NAMES = ["movieId", "title", "genres"]
#: The columns of a rating with its movie.
DEFAULT_COLUMN_NAMES = [*DEFAULT_RATINGS_COLUMN_NAMES, *DEFAULT_MOVIES_COLUMN_NAMES[1:]]


def safe_cast(
    val: float | str, dest_type: Callable[[float | str], float | str], default: float | str
) -> float | str:
    """Return a value in another type, or a default where it has none.

    Args:
        val: The value.
        dest_type: ``int``, ``float`` or ``str``.
        default: What stands for a value that cannot be read.
    """
    try:
        return dest_type(val)
    except ValueError:
        return default


def _caster(
    dest_type: Callable[[float | str], float | str], default: float | str
) -> Callable[[float | str], float | str]:
    return lambda value: safe_cast(value, dest_type, default)


#: For each of ``DEFAULT_COLUMN_NAMES``: a function from text to its value.
COLUMN_TYPE_CASTERS = [
    _caster(int, 0),
    _caster(int, 0),
    _caster(float, 0.0),
    _caster(int, 0),
    _caster(str, ""),
    _caster(str, ""),
]
