"""The native engine as a module, built from ``cpp_client/binding/``; ``serve.engine.native`` is its only user.

The engine's threads never run Python code. What they report waits inside the engine: ``fileno()`` becomes readable, and
``take()`` returns it. All methods may be called from any thread; those that wait give the interpreter's lock away.

The module needs torch's libraries in the process: import torch first. They must be of the version that the module was
built with. The file holds that version as text, so that it can be read without loading the module: ``BUILD``.
"""

from collections.abc import Sequence
from typing import Any

BUILD: str
"""``recsys-engine-build `` and a JSON object: versions of ``engine``, ``torch`` and ``fbgemm_gpu``.

The same text stands in the file, once.
"""

class Error(Exception):
    """An error of the engine.

    Attributes:
        kind: the error's name in ``cpp_client/include/recsys/error.h`` in lower case, such as ``queue_full``.
        retry_after_ms: when the client may try again; 0 for no hint.
    """

    kind: str
    retry_after_ms: int

class AnsweredBlock:
    """Answered requests of one version of a model."""

    @property
    def num_bytes(self) -> int:
        """The bytes of its columns."""

    @property
    def has_inputs(self) -> bool:
        """Whether it has the requests' inputs too."""

    def __len__(self) -> int: ...
    def draws(self) -> Any:
        """Return ``RequestColumns.draws``."""

    def columns(self) -> tuple[tuple[Any, ...], list[tuple[Any, Any]], list[tuple[Any, ...]]]:
        """Return the fields of ``RequestColumns``, and of each input those of ``DenseColumn`` or ``SparseColumn``.

        The arrays of ``serve.engine.answered`` are views of the block, and keep it alive.
        """

class Version:
    """One loaded version of a model."""

    def description(self) -> str:
        """Return JSON: name, version, target, digest, table_bytes, format, torch, fbgemm, rows_pages, signature."""

    def num_owned(self, table: str, ids: bytes) -> int:
        """Return how many little-endian int64 IDs own a row of a managed table; -1 where that is not known."""

    def apply_delta(self, path: str) -> int:
        """Exchange rows between two batches; blocks.

        Returns:
            How many dense weights stay as they were exported, although they had changed when the delta was made.

        Raises:
            Error: the delta is damaged or does not fit. Nothing has changed then.
        """

    def totals(self) -> str:
        """Return JSON: its numbers, all of one moment."""

    def close(self) -> None:
        """Answer what was accepted and end its threads; blocks. Idempotent. Withdraw its routes first."""

class Engine:
    """The inference port, and whatever happens per request.

    Settings are JSON objects with the fields of ``cpp_client/engine/settings/settings.h``. What is still open when the
    interpreter exits is closed then, without a grace period.
    """

    def __init__(self, settings: str) -> None:
        """Start without a port and without models. ``settings``: EngineSettings."""

    def fileno(self) -> int:
        """Return a file descriptor that is readable while events wait."""

    def take(self, at_most: int, all_answers: bool = False) -> list[tuple[Any, ...]]:
        """Return events that wait, oldest first within each kind; never blocks.

        Blocks of answers, which ``at_most`` does not bound, are returned once they are full, with ``all_answers`` all.

        * ``("call", id, method, message, deadline_s, metadata, peer, is_last)``: to be answered with ``answer`` or
          ``fail``. ``deadline_s``: on the clock of ``time.monotonic()``, or None. ``metadata``: the first value of each
          key.
        * ``("answer", ticket, code, text, retry_after_ms, message)``: the end of a submitted request. ``code``: the
          status code's number.
        * ``("ended", fields)``: a dict with the fields of EndedEvent in ``cpp_client/engine/events.h``; ``times`` is a
          dict or None.
        * ``("captured", time_s, model, version, message)``: ``time_s`` on the clock of ``time.monotonic()``.
        * ``("answered", model, version, block)``: an ``AnsweredBlock``. Full ones make ``fileno()`` readable.
        * ``("shadow", model, version, shadow, request_id, num_rows, expected, got)``: lists of float32 bytes, one for
          each output.
        * ``("log", level, logger, text)``: ``level``: ``INFO``, ``WARNING``, ``ERROR`` or ``CRITICAL``.
        """

    def listen(
        self,
        settings: str,
        calls: Sequence[str],
        streams: Sequence[str],
        tls: tuple[bytes, bytes, bytes | None] | None,
    ) -> int:
        """Open the inference port and return its number.

        Args:
            settings: PortSettings.
            calls: full names (``/package.Service/Method``) of the unary methods that come as ``call`` events.
            streams: the same of streaming methods.
            tls: certificate, key, and the authorities of clients' certificates, as PEM; None for plain text.

        Raises:
            Error: ``listen`` (the port is taken, or the address is not this machine's) or ``config``.
        """

    def listen_http(self, file: int, max_json_bytes: int) -> None:
        """Answer predictions over HTTP/1.1 on a listening socket, which it then owns; once, after ``listen``.

        Connections that send anything else become the event ``connection``.

        Raises:
            Error: the engine does not listen, or listens for HTTP already.
        """

    def release_connection(self) -> None:
        """Tell that a connection of the event ``connection`` is closed."""

    def set_tls(self, certificate: bytes, key: bytes, client_ca: bytes | None) -> None:
        """Use other TLS material for new connections.

        Raises:
            Error: it cannot be used; the port keeps what it has.
        """

    def set_health(self, service: str, is_serving: bool) -> None:
        """Set what the port says of a service's health; empty for the server as a whole."""

    def open(self, path: str, settings: str, warm_up: Sequence[bytes]) -> Version:
        """Load an artifact and warm it up; blocks.

        Args:
            path: of the artifact.
            settings: VersionSettings.
            warm_up: serialized ``recsys.v1.PredictRequest``s; those that do not fit the model are left out.

        Raises:
            Error: the artifact is damaged, foreign or newer, or the model failed.
        """

    def publish(self, table: str, versions: Sequence[Version]) -> None:
        """Send the requests of a model where ``table`` says (RouteSpec); ``versions``: all that may answer."""

    def withdraw(self, model: str) -> None:
        """Forget a model."""

    def submit(self, ticket: int, options: str, message: bytes) -> None:
        """Answer a request from another door than the port: an ``answer`` event with the ticket follows, once.

        Args:
            ticket: a number that no other waiting request has.
            options: SubmitOptions.
            message: the serialized request.
        """

    def cancel(self, ticket: int) -> None:
        """Give a submitted request up; its event still follows."""

    def answer(self, call: int, message: bytes) -> None:
        """Answer a ``call`` event; ignored if the call has already ended."""

    def fail(self, call: int, code: int, text: str, retry_after_ms: int = 0) -> None:
        """End the call of a ``call`` event with a status."""

    def counts(self) -> str:
        """Return JSON: requests that named no model, connections, active requests, dropped events by kind."""

    def num_active(self) -> int:
        """Return the number of requests that are being answered."""

    def drain(self) -> None:
        """Refuse requests and connections from now on; what was accepted is answered."""

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until every accepted request is answered, or for so long; return whether it is."""

    def close(self, grace_s: float) -> bool:
        """Drain, wait for at most ``grace_s``, end what is left and close the port; blocks. Idempotent.

        Returns:
            Whether everything was answered.
        """
