"""What is wrong with the lengths of bags, as the server's request check and loaded artifacts say it.

Shape letters: B rows.
"""

from __future__ import annotations

import numpy as np

from recsys.base.hashing import Int64s


def why_too_many(at: str, lengths: Int64s, most: int) -> str:
    """Return which bag of a crossed feature has more IDs than the model takes; empty if none has.

    Args:
        at: The input.
        lengths: Its lengths, ``[B]``.
        most: How many it takes.
    """
    more = lengths > most
    if not more.any():
        return ""
    row = int(np.argmax(more))
    return f"{at}.lengths: got {lengths[row]} in row {row}, expected at most {most}: the model crosses the feature"


def why_not_as_many(at: str, lengths: Int64s, other_name: str, others: Int64s) -> str:
    """Return in which row an input has not as many IDs as another one; empty if there is none.

    Args:
        at: The input.
        lengths: Its lengths, ``[B]``, or ``[1]`` of an input that is given once.
        other_name: The other input.
        others: Its lengths, ``[B]`` or ``[1]``.
    """
    differ = np.atleast_1d(lengths != others)
    if not differ.any():
        return ""
    row = int(np.argmax(differ))
    got, expected = (int(of[row if len(of) > 1 else 0]) for of in (lengths, others))
    return f"{at}.lengths: got {got} in row {row}, expected {expected}, as many as {other_name!r} has there"
