"""Bodies that clients compress, as Triton's HTTP client does where it is asked to."""

from __future__ import annotations

import zlib

from serve.errors import BodyTooLargeError, RequestError

# RFC 9110: deflate is zlib's format.
ENCODINGS = ("gzip", "deflate")
# zlib's word for "whichever of the two its header says".
_EITHER = zlib.MAX_WBITS | 32


def inflate(data: bytes, max_bytes: int) -> bytes:
    """What a body was before it was compressed; holds no lock meanwhile, so that it is fit for a thread.

    Args:
        data: of one of ``ENCODINGS``.
        max_bytes: of what comes out; no more than one byte beyond is made.

    Raises:
        BodyTooLargeError: it is longer.
        RequestError: the data is broken, incomplete, or followed by more.
    """
    decompressor = zlib.decompressobj(_EITHER)
    try:
        inflated = decompressor.decompress(data, max_bytes + 1)
    except zlib.error:
        raise RequestError(f"body: got {len(data)} bytes that are neither gzip nor deflate") from None
    if len(inflated) > max_bytes:
        raise BodyTooLargeError(
            f"body: got more than {max_bytes} bytes once it was inflated, expected at most so many"
        )
    if not decompressor.eof:
        raise RequestError(f"body: got {len(data)} compressed bytes that end too early")
    if decompressor.unused_data:
        raise RequestError(f"body: got {len(decompressor.unused_data)} bytes after the compressed ones")
    return inflated
