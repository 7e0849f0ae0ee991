"""TLS on every port that has it, certificates of clients and their exchange, the admin token."""

from __future__ import annotations

import json
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest

from serve.client import Client, ClientTls, Settings
from serve.client.errors import PredictError
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import TOKEN, ServerUnderTest, running, status_of, with_admin
from tests.conformance.support.http_calls import Reply, ask, plain_body
from tests.support.serve.certificates import Authority, Pair, replace, write_tls
from tests.support.serve.messages.cases import assert_answers

pytestmark = pytest.mark.engine

_PATIENCE_S = 120.0
LIST_MODELS = "/recsys.v1.AdminService/ListModels"
HEALTH = "/grpc.health.v1.Health/Check"


@dataclass(frozen=True)
class Secured:
    """A server with TLS, and who signed its certificate; ``clients`` sign those of clients, where it asks."""

    server: ServerUnderTest
    folder: Path
    authority: Authority
    clients: Authority | None = None

    def settings(self, pair: Pair | None = None) -> Settings:
        """Credentials of a client that trusts the server; with its own certificate, if there is one."""
        (self.folder / "ca.crt").write_bytes(self.authority.certificate)
        return Settings(timeout_s=60, tls=ClientTls(ca=self.folder / "ca.crt", **self._files(pair)))

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """The same for HTTPS."""
        context = ssl.create_default_context(cadata=self.authority.certificate.decode())
        if pair is not None:
            files = self._files(pair)
            context.load_cert_chain(files["certificate"], files["key"])
        return context

    def url(self, path: str) -> str:
        return f"https://{self.server.http_address}{path}"

    def serial(self, port: str = "port") -> int:
        """The serial number of the certificate that a new connection to a port is shown."""
        context = self.context()
        context.set_alpn_protocols(["h2"])
        where = ("127.0.0.1", self.server.ready[port])
        with (
            socket.create_connection(where, timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            certificate = connection.getpeercert()
            assert certificate is not None
            return int(certificate["serialNumber"], 16)

    def shows(self, port: str, pair: Pair) -> bool:
        """Whether a new connection to a port is shown that certificate."""
        return self.serial(port) == pair.serial

    def _files(self, pair: Pair | None) -> dict[str, Path]:
        if pair is None:
            return {}
        files = {"certificate": self.folder / f"{pair.serial}.crt", "key": self.folder / f"{pair.serial}.key"}
        files["certificate"].write_bytes(pair.certificate)
        files["key"].write_bytes(pair.key)
        return files


def arguments_of(folder: Path, authority: Authority, clients: Authority | None) -> list[str | Path]:
    config = write_tls(folder, authority.issue(), None if clients is None else clients.certificate)
    flags: list[str | Path] = ["--tls-certificate", config.certificate, "--tls-key", config.key]
    if config.client_ca is not None:
        flags += ["--tls-client-ca", config.client_ca]
    return ["--http-port", "0", *flags, *with_admin(folder)]


@pytest.fixture(scope="module")
def secured(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, authority = tmp_path_factory.mktemp("tls"), Authority()
    with running(small.path, *arguments_of(folder, authority, None), folder=folder) as server:
        yield Secured(server, folder, authority)


@pytest.fixture(scope="module")
def mutual(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder, authority, clients = tmp_path_factory.mktemp("mtls"), Authority(), Authority("clients")
    with running(small.path, *arguments_of(folder, authority, clients), folder=folder) as server:
        yield Secured(server, folder, authority, clients)


def assert_served(secured: Secured, small: Exported, pair: Pair | None = None) -> None:
    sample = small.sample(2)
    with Client(secured.server.address, settings=secured.settings(pair)) as client:
        found = client.predict(sample.dense, sample.sparse, sample.weights)
    assert_answers(found, small.answer(sample))


def over_rest(secured: Secured, small: Exported, pair: Pair | None = None) -> Reply:
    body = plain_body(small.sample(2))
    return ask(secured.url("/v1/models/small:predict"), body, tls=secured.context(pair))


def test_predictions_over_tls(secured: Secured, small: Exported) -> None:
    assert_served(secured, small)
    assert over_rest(secured, small).status == 200


def test_a_client_that_does_not_trust_the_server_or_speaks_in_the_clear_gets_nothing(
    secured: Secured, small: Exported
) -> None:
    stranger = grpc.ssl_channel_credentials(Authority("another").certificate)
    data = small.sample(1).request().SerializeToString()
    with grpc.secure_channel(secured.server.address, stranger) as channel:
        call = secured.server.predict_bytes(channel)
        assert status_of(lambda: call(data, timeout=60))[0] is grpc.StatusCode.UNAVAILABLE
    plain = secured.server.predict_bytes()
    assert status_of(lambda: plain(data, timeout=60))[0] is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(OSError):
        ask(f"http://{secured.server.http_address}/v2/health/live")
    assert_served(secured, small)


@pytest.mark.parametrize("port", ["port", "http_port", "admin_port"])
def test_tls_below_1_2_is_refused(secured: Secured, port: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.options &= ~ssl.OP_NO_TLSv1_1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of old versions, and we mean them
        context.minimum_version = ssl.TLSVersion.TLSv1_1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", secured.server.ready[port]), timeout=60) as plain,
        pytest.raises(ssl.SSLError) as caught,
    ):
        context.wrap_socket(plain)
    # Both are the server's doing: an alert, or the end of the connection, of which Python may give no reason.
    is_closed = isinstance(caught.value, (ssl.SSLEOFError, ssl.SSLZeroReturnError))
    assert is_closed or caught.value.reason in (
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "UNEXPECTED_EOF_WHILE_READING",
    )


def is_served(secured: Secured, small: Exported, pair: Pair) -> bool:
    try:
        assert_served(secured, small, pair)
    except (PredictError, OSError):
        return False
    return True


def until(condition: Callable[[], bool]) -> None:
    """Ask until it is so: an engine may look at the TLS files every so often, instead of at each handshake."""
    end_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_new_connections_get_new_certificates_while_old_ones_live_on(
    secured: Secured, small: Exported
) -> None:
    sample = small.sample(2)
    with Client(secured.server.address, settings=secured.settings()) as old:
        old.predict(sample.dense, sample.sparse, sample.weights)
        for _ in range(2):
            pair = secured.authority.issue()
            write_tls(secured.folder, pair)
            for port in ("port", "http_port", "admin_port"):
                until(partial(secured.shows, port, pair))
            found = old.predict(sample.dense, sample.sparse, sample.weights)
            assert_answers(found, small.answer(sample))
        # A key that is another's: new connections get the pair that fits.
        replace(secured.folder / "server.key", secured.authority.issue().key)
        until(lambda: secured.shows("port", pair) and "cannot be used" in secured.server.log.read_text())
        assert secured.shows("port", pair)
        assert_served(secured, small)
        write_tls(secured.folder, pair)


def admin_status(secured: Secured, authorization: str | None, method: str = LIST_MODELS) -> grpc.StatusCode:
    credentials = grpc.ssl_channel_credentials(secured.authority.certificate)
    metadata = () if authorization is None else (("authorization", authorization),)
    with grpc.secure_channel(secured.server.admin_address, credentials) as channel:
        call = channel.unary_unary(method)
        return status_of(lambda: call(b"", metadata=metadata, timeout=60))[0]


@pytest.mark.parametrize("method", [LIST_MODELS, HEALTH, "/recsys.v1.PredictionService/GetModelMetadata"])
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x"],
)
def test_every_call_on_the_admin_port_wants_the_token(
    secured: Secured, method: str, authorization: str | None
) -> None:
    assert admin_status(secured, authorization, method) is grpc.StatusCode.UNAUTHENTICATED


def test_a_new_token_counts_at_once_and_none_lets_nobody_in(secured: Secured) -> None:
    path, fresh = secured.folder / "token", "the-token-of-the-next-day"
    ok, refused = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
    try:
        assert admin_status(secured, f"Bearer {TOKEN}") is ok
        new = path.with_name("token.new")
        new.write_text(fresh)
        new.chmod(0o600)
        new.rename(path)
        assert admin_status(secured, f"Bearer {TOKEN}") is refused
        assert admin_status(secured, f"Bearer {fresh}") is ok
        path.chmod(0o644)  # whoever may read it may have read it
        assert admin_status(secured, f"Bearer {fresh}") is refused
        path.chmod(0o600)
        assert admin_status(secured, f"Bearer {fresh}") is ok
        path.unlink()
        assert admin_status(secured, f"Bearer {fresh}") is refused
    finally:
        with_admin(secured.folder)
    assert admin_status(secured, f"Bearer {TOKEN}") is ok
    assert fresh not in secured.server.log.read_text()


def test_clients_must_show_a_certificate_where_an_authority_is_named(
    mutual: Secured, small: Exported
) -> None:
    assert mutual.clients is not None
    known, stranger = mutual.clients.issue("client"), Authority("strangers").issue("stranger")
    assert_served(mutual, small, known)
    assert over_rest(mutual, small, known).status == 200
    for pair in (None, stranger):
        with (
            pytest.raises(PredictError) as caught,
            Client(mutual.server.address, settings=mutual.settings(pair)) as client,
        ):
            client.metadata()
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(OSError):
            over_rest(mutual, small, pair)


def test_clients_of_an_authority_that_is_gone_are_shut_out(mutual: Secured, small: Exported) -> None:
    assert mutual.clients is not None
    known, others = mutual.clients.issue("client"), Authority("others")
    assert_served(mutual, small, known)
    replace(mutual.folder / "clients.crt", others.certificate)
    try:
        until(lambda: not is_served(mutual, small, known))
        with (
            pytest.raises(PredictError),
            Client(mutual.server.address, settings=mutual.settings(known)) as client,
        ):
            client.metadata()
        with pytest.raises(OSError):
            over_rest(mutual, small, known)
        assert_served(mutual, small, others.issue("friend"))
    finally:
        replace(mutual.folder / "clients.crt", mutual.clients.certificate)
    until(lambda: is_served(mutual, small, known))


def test_metadata_over_https_is_json(secured: Secured) -> None:
    reply = ask(secured.url("/v2/models/small"), tls=secured.context())
    assert json.loads(reply.data)["name"] == "small"
