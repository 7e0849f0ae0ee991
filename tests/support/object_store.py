"""S3 on loopback: moto's server in a process of its own, with credentials that are not anybody's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class ObjectStore:
    """A server of S3.

    Attributes:
        endpoint: its address on loopback.
    """

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach this store and no other: no profile, and no service of a cloud, is asked."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def new_bucket(self) -> str:
        """Create a bucket with a name that is not in use, and return it."""
        bucket = f"bucket-{uuid.uuid4().hex[:12]}"
        # The server takes requests without a signature for as long as it does not check credentials.
        self.ask("PUT", f"/{bucket}")
        return bucket

    @contextmanager
    def checking_credentials(self) -> Iterator[None]:
        """Let the store refuse credentials, none of which it knows, in the block."""
        self.ask("POST", "/moto-api/reset-auth", b"0")
        try:
            yield
        finally:
            self.ask("POST", "/moto-api/reset-auth", b"inf")

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request and return the answer's body."""
        request = urllib.request.Request(self.endpoint + path, data=body, method=method)
        request.add_header("Content-Type", "text/plain")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())


@contextmanager
def running_store() -> Iterator[ObjectStore]:
    """Run a server for the block, on a port that the system chooses."""
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "inf"},
    )
    assert process.stderr is not None
    reader = None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            found = re.search(r"Running on (http://127\.0\.0\.1:\d+)", line)
            if found:
                break
        else:
            raise AssertionError(f"the store did not start: {''.join(said)}")
        # Its log of requests would fill the pipe.
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        yield ObjectStore(found[1])
    finally:
        process.terminate()
        process.wait(timeout=30)
        if reader is not None:
            reader.join()
        process.stderr.close()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """A server of S3 that all tests of a process share, each with buckets of its own."""
    with running_store() as store:
        yield store


@pytest.fixture
def bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of its own; this process, and those that it starts, reach its store."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return object_store.new_bucket()
