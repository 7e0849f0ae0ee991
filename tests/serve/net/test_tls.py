"""TLS files that change under live servers, and clients' certificates."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from cryptography import x509

from serve.client import Client, ClientTls, Settings
from serve.config.settings import TlsConfig
from serve.engine.reference.executor import ServedModel
from serve.net.files import SecurityError
from serve.net.tls import TlsFiles, read_tls, server_credentials, ssl_context
from tests.support.serve.certificates import Authority, Pair, replace, write_tls
from tests.support.serve.messages.cases import assert_answers, random_sample
from tests.support.serve.messages.echo import OWN_CONNECTION, call, echo_server
from tests.support.serve.spawned import spawned


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def _channel(address: str, authority: bytes, client: Pair | None = None) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        authority, None if client is None else client.key, None if client is None else client.certificate
    )
    return grpc.aio.secure_channel(address, credentials, options=OWN_CONNECTION)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Drop a connection without TLS's goodbye, for which the other end might let us wait."""
    writer.transport.abort()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()


async def _serial(address: str, context: ssl.SSLContext | None = None) -> int:
    """The serial number of the certificate that a new connection is shown."""
    host, port = address.split(":")
    if context is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    await _close(writer)
    return x509.load_der_x509_certificate(shown).serial_number


def test_new_connections_get_new_certificates_and_old_connections_live_on(
    authority: Authority, tmp_path: Path
) -> None:
    first, second, third = (authority.issue() for _ in range(3))
    config = write_tls(tmp_path, first)

    async def scenario() -> None:
        async with (
            echo_server(credentials=server_credentials(config)) as (address, _),
            _channel(address, authority.certificate) as old,
        ):
            assert await call(old) == b"hello"
            for pair in (second, third):
                assert await _serial(address) != pair.serial
                write_tls(tmp_path, pair)
                assert await _serial(address) == pair.serial
                assert await _serial(address) == pair.serial
                assert old.get_state() is grpc.ChannelConnectivity.READY
                assert await call(old) == b"hello"
                async with _channel(address, authority.certificate) as new:
                    assert await call(new) == b"hello"

    asyncio.run(scenario())


def test_a_client_that_does_not_trust_the_certificate_gets_no_answer(
    authority: Authority, tmp_path: Path
) -> None:
    config = write_tls(tmp_path, authority.issue())

    async def scenario() -> None:
        async with echo_server(credentials=server_credentials(config)) as (address, _):
            async with _channel(address, Authority("another").certificate) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(channel)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            async with grpc.aio.insecure_channel(address) as plain:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(plain)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


def test_clients_must_show_a_certificate_where_an_authority_is_named(
    authority: Authority, tmp_path: Path
) -> None:
    clients, strangers = Authority("clients"), Authority("strangers")
    config = write_tls(tmp_path, authority.issue(), clients.certificate)

    async def refused(address: str, client: Pair | None) -> None:
        async with _channel(address, authority.certificate, client) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    async def scenario() -> None:
        async with echo_server(credentials=server_credentials(config)) as (address, echo):
            await refused(address, None)
            await refused(address, strangers.issue("stranger"))
            assert echo.most_open == 0
            async with _channel(address, authority.certificate, clients.issue("client")) as channel:
                assert await call(channel) == b"hello"
            # Another authority: the old one's clients are strangers now.
            assert config.client_ca is not None
            replace(config.client_ca, strangers.certificate)
            await refused(address, clients.issue("client"))
            async with _channel(address, authority.certificate, strangers.issue("friend")) as channel:
                assert await call(channel) == b"hello"

    asyncio.run(scenario())


def _broken_key(config: TlsConfig) -> None:
    replace(config.key, Authority().issue().key)


def _no_certificate(config: TlsConfig) -> None:
    config.certificate.unlink()


def _garbage(config: TlsConfig) -> None:
    replace(config.certificate, b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")


def _empty(config: TlsConfig) -> None:
    replace(config.certificate, b"")


@pytest.mark.parametrize(
    "damage", [_broken_key, _no_certificate, _garbage, _empty], ids=lambda damage: damage.__name__
)
def test_files_that_cannot_be_used_keep_the_old_ones_and_are_complained_of_once(
    damage: Callable[[TlsConfig], None],
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = authority.issue(), authority.issue()
    config = write_tls(tmp_path, first)

    async def scenario() -> None:
        async with echo_server(credentials=server_credentials(config)) as (address, _):
            damage(config)
            assert [await _serial(address) for _ in range(3)] == [first.serial] * 3
            errors = [record for record in caplog.records if record.levelno == logging.ERROR]
            assert len(errors) == 1
            assert "cannot be used, connections get the old ones" in errors[0].getMessage()
            write_tls(tmp_path, second)
            assert await _serial(address) == second.serial

    with caplog.at_level(logging.INFO, logger="serve"):
        asyncio.run(scenario())


def test_two_ports_reload_each_for_itself(authority: Authority, tmp_path: Path) -> None:
    config = write_tls(tmp_path, authority.issue())
    second = authority.issue()

    async def scenario() -> None:
        async with (
            echo_server(credentials=server_credentials(config)) as (one, _),
            echo_server(credentials=server_credentials(config)) as (two, _),
        ):
            write_tls(tmp_path, second)
            assert [await _serial(one), await _serial(two)] == [second.serial] * 2

    asyncio.run(scenario())


@asynccontextmanager
async def _asyncio_server(context: ssl.SSLContext) -> AsyncIterator[str]:
    """A server of Python's own TLS, as REST has it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
                await writer.drain()
        except (ssl.SSLError, ConnectionError):  # the client has gone
            pass
        finally:
            await _close(writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def _client_context(authority: Authority, folder: Path, client: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    if client is not None:
        (folder / "client.crt").write_bytes(client.certificate)
        (folder / "client.key").write_bytes(client.key)
        context.load_cert_chain(folder / "client.crt", folder / "client.key")
    return context


async def _echo(address: str, context: ssl.SSLContext) -> bytes:
    """What comes back; nothing where the server ends the connection instead."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        writer.write(b"hello")
        return await reader.read(100)
    except (ssl.SSLError, ConnectionError):  # with TLS 1.3 the client is done before the server has looked
        return b""
    finally:
        await _close(writer)


def test_rest_connections_get_new_certificates_too(authority: Authority, tmp_path: Path) -> None:
    second = authority.issue()
    config = write_tls(tmp_path, authority.issue())
    trusting = _client_context(authority, tmp_path)

    async def scenario() -> None:
        async with _asyncio_server(ssl_context(config)) as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
            write_tls(tmp_path, second)
            assert await _serial(address) == second.serial
            assert await _serial(address, trusting) == second.serial
            writer.write(b"old")
            assert await reader.read(100) == b"old"
            await _close(writer)
            _broken_key(config)
            assert await _serial(address) == second.serial

    asyncio.run(scenario())


def test_rest_asks_for_clients_certificates_and_forgets_authorities(
    authority: Authority, tmp_path: Path
) -> None:
    clients, others = Authority("clients"), Authority("others")
    config = write_tls(tmp_path, authority.issue(), clients.certificate)
    known = _client_context(authority, tmp_path, clients.issue("client"))

    async def scenario() -> None:
        async with _asyncio_server(ssl_context(config)) as address:
            assert await _echo(address, known) == b"hello"
            for context in (
                _client_context(authority, tmp_path),
                _client_context(authority, tmp_path, others.issue("stranger")),
            ):
                assert await _echo(address, context) == b""
            assert config.client_ca is not None
            replace(config.client_ca, others.certificate)
            assert await _echo(address, known) == b""
            friend = _client_context(authority, tmp_path, others.issue("friend"))
            assert await _echo(address, friend) == b"hello"

    asyncio.run(scenario())


async def _session(
    address: str, context: ssl.SSLContext, earlier: ssl.SSLSession | None
) -> tuple[ssl.SSLSession | None, bool]:
    """Make a connection of TLS 1.2, with an earlier connection's session if there is one.

    Returns:
        A session to go on with, and whether the earlier one was taken.

    Raises:
        ssl.SSLError: the server refused.
    """

    def connect() -> tuple[ssl.SSLSession | None, bool]:
        host, port = address.split(":")
        with (
            socket.create_connection((host, int(port))) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=earlier) as connection,
        ):
            return connection.session, bool(connection.session_reused)

    return await asyncio.to_thread(connect)


def test_a_resumed_session_does_not_let_a_client_in_that_was_shut_out(
    authority: Authority, tmp_path: Path
) -> None:
    clients, others = Authority("clients"), Authority("others")
    config = write_tls(tmp_path, authority.issue(), clients.certificate)
    known = _client_context(authority, tmp_path, clients.issue("client"))
    known.maximum_version = ssl.TLSVersion.TLSv1_2
    known.set_alpn_protocols(["h2"])

    async def scenario() -> None:
        async with echo_server(credentials=server_credentials(config)) as (address, _):
            session, _ = await _session(address, known, None)
            assert (await _session(address, known, session))[1]
            assert config.client_ca is not None
            replace(config.client_ca, others.certificate)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await _session(address, known, session)
        async with _asyncio_server(ssl_context(config)) as address:
            with pytest.raises((ssl.SSLError, ConnectionError)):  # REST does without TLS 1.2 here
                await _session(address, known, None)

    asyncio.run(scenario())


def _wrong_files(authority: Authority, folder: Path) -> dict[str, tuple[TlsConfig, str]]:
    pair = authority.issue()
    good = write_tls(folder, pair, authority.certificate)
    for name, data in (
        ("other.key", authority.issue().key),
        ("locked.key", authority.issue(password=b"secret").key),
        ("no.pem", b"no PEM"),
        ("binary.pem", b"\xff\x00" * 100),
    ):
        (folder / name).write_bytes(data)

    def but(**paths: Path) -> TlsConfig:
        return TlsConfig(
            **{"certificate": good.certificate, "key": good.key, "client_ca": good.client_ca} | paths
        )

    return {
        "missing": (but(certificate=folder / "missing"), "tls.certificate: cannot read .*: No such file"),
        "folder": (but(key=folder), "tls.key: cannot read .*: Is a directory"),
        "other-key": (but(key=folder / "other.key"), "expected a certificate in PEM and its own key"),
        "locked-key": (but(key=folder / "locked.key"), "is encrypted, expected a key without a password"),
        "no-key": (but(key=folder / "no.pem"), "expected a certificate in PEM and its own key"),
        "no-certificate": (but(certificate=folder / "binary.pem"), "expected a certificate in PEM"),
        "no-authority": (but(client_ca=folder / "no.pem"), "tls.client_ca: .*expected certificates in PEM"),
        "binary-authority": (but(client_ca=folder / "binary.pem"), "tls.client_ca: .*expected certificates"),
    }


@pytest.mark.parametrize(
    "case",
    [
        "missing",
        "folder",
        "other-key",
        "locked-key",
        "no-key",
        "no-certificate",
        "no-authority",
        "binary-authority",
    ],
)
def test_a_server_does_not_start_with_files_that_cannot_be_used(
    case: str, authority: Authority, tmp_path: Path
) -> None:
    config, text = _wrong_files(authority, tmp_path)[case]
    for use in (read_tls, TlsFiles, server_credentials, ssl_context):
        with pytest.raises(SecurityError, match=text):
            use(config)


def test_a_server_in_a_file_serves_over_tls_and_takes_new_certificates(
    artifact_path: Path, model: ServedModel, authority: Authority, tmp_path: Path
) -> None:
    second = authority.issue()
    write_tls(tmp_path, authority.issue())
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    (tmp_path / "serve.toml").write_text(
        f"""
port = 0
metrics_port = "none"
[source]
artifact = "{artifact_path}"
[tls]
certificate = "server.crt"
key = "server.key"
"""
    )
    sample = random_sample(model.signature, 3, np.random.default_rng(0))
    settings = Settings(timeout_s=60, tls=ClientTls(ca=tmp_path / "ca.crt"))
    command = [sys.executable, "-m", "serve.app.cli", "--config", str(tmp_path / "serve.toml"), "--json"]
    with spawned(command, tmp_path / "log") as server:
        with Client(server.address, settings=settings) as old:
            answers = old.predict(sample.dense, sample.sparse, sample.weights)
            write_tls(tmp_path, second)
            assert asyncio.run(_serial(server.address)) == second.serial
            with Client(server.address, settings=settings) as new:
                assert_answers(new.predict(sample.dense, sample.sparse, sample.weights), answers)
            assert_answers(old.predict(sample.dense, sample.sparse, sample.weights), answers)
        server.process.terminate()
        assert server.finish()[0] == 0
    assert "TLS files have changed" in (tmp_path / "log").read_text()
