"""S3 on loopback: moto's server in a process of its own, with credentials that are not anybody's."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from recsys.artifact.manifest_file import MANIFEST_NAME
from recsys.base.remote import RemoteFolder, parse_address

# What a proxy lets through of an answer: its headers, and a little of its body.
_BEGINNING = 700


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


class Proxy:
    """A proxy before a store that ends, or holds up, answers to requests for certain files.

    Attributes:
        endpoint: its address on loopback.
        cut: requests with this text get the beginning of their answer, then the end of the connection; empty for none.
        hold: requests with this text get the beginning of their answer, and nothing more; empty for none.
        held: set once an answer is held up.
    """

    def __init__(self, store: ObjectStore) -> None:
        host, _, port = store.endpoint.removeprefix("http://").partition(":")
        self._store = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut = self.hold = ""
        self.held = threading.Event()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End all connections."""
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._pass_on, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket) -> None:
        """Pass bytes in both directions until one side ends, or a rule does."""
        left: int | None = None
        with client, socket.create_connection(self._store) as store:
            # Unlike select, poll takes files of any number: the process of the tests may have many.
            poll = select.poll()
            sources = {one.fileno(): one for one in (client, store)}
            for number in sources:
                poll.register(number, select.POLLIN)
            while not self._ended.is_set():
                for number, _ in poll.poll(50):
                    source = sources[number]
                    try:
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        if source is client:
                            rules = [text.encode() for text in (self.cut, self.hold) if text]
                            left = _BEGINNING if any(rule in data for rule in rules) else left
                            store.sendall(data)
                            continue
                        client.sendall(data[:left])
                    except OSError:
                        return
                    if left is None:
                        continue
                    left -= min(left, len(data))
                    if left == 0 and self.hold:
                        self.held.set()
                        self._ended.wait()
                    if left == 0:
                        return


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """A server of S3 that all tests of a process share, each with buckets of its own."""
    with running_store() as store:
        yield store


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[Proxy]:
    """A proxy before the store; a test sets ``AWS_ENDPOINT_URL`` to its address."""
    proxy = Proxy(object_store)
    yield proxy
    proxy.close()


@pytest.fixture
def bucket(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of its own; this process, and those that it starts, reach its store."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    return object_store.new_bucket()


def upload(artifact: Path, address: str) -> RemoteFolder:
    """Put an artifact into a store, its manifest last."""
    folder = RemoteFolder(parse_address(address))
    if artifact.is_file():
        folder.put(artifact)
        return folder
    for file in sorted(artifact.iterdir(), key=lambda file: file.name == MANIFEST_NAME):
        folder.put(file, file.name)
    return folder


def remove(folder: RemoteFolder) -> None:
    """Remove the files of an artifact from a store, its manifest first."""
    for entry in sorted(folder.entries(), key=lambda entry: entry.name != MANIFEST_NAME):
        folder.remove(entry.name)
