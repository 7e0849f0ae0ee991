"""The clients of a server: what ``serve.client`` has, also for programs beside a file called ``serve.py``.

Example::

    from recsys.client import Client

    with Client("127.0.0.1:8500") as client:
        print(client.metadata())
"""

from typing import TYPE_CHECKING

from recsys.faces import face

if TYPE_CHECKING:
    from serve.client import Answer, AsyncClient, Client, ClientTls, Context, Feedback, Retries, Settings
    from serve.client.errors import (
        DeadlineError,
        InvalidRequestError,
        OverloadedError,
        PredictError,
        ServerError,
        UnavailableError,
        UnknownModelError,
    )
    from serve.client.packing import build_request

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "ClientTls",
    "Context",
    "DeadlineError",
    "Feedback",
    "InvalidRequestError",
    "OverloadedError",
    "PredictError",
    "Retries",
    "ServerError",
    "Settings",
    "UnavailableError",
    "UnknownModelError",
    "build_request",
]

__getattr__ = face(
    __name__,
    {
        "serve.client": (
            "Answer",
            "AsyncClient",
            "Client",
            "ClientTls",
            "Context",
            "Feedback",
            "Retries",
            "Settings",
        ),
        "serve.client.errors": tuple(name for name in __all__ if name.endswith("Error")),
        "serve.client.packing": ("build_request",),
    },
)
