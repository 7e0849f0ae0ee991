"""The token of the admin service: who is let in, and what its file must be like."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from serve.net.auth import TokenCheck, UnauthenticatedError, read_token
from serve.net.files import SecurityError

TOKEN = "0123456789abcdef-token"


def _token_file(folder: Path, text: str = TOKEN + "\n", mode: int = 0o600) -> Path:
    path = folder / "token"
    fresh = folder / "token.new"
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)
    return path


def _shows(token: str) -> list[tuple[str, str | bytes]]:
    return [("user-agent", "test"), ("authorization", f"Bearer {token}")]


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param([], id="missing"),
        pytest.param(_shows("another-token-of-some-length"), id="another"),
        pytest.param(_shows(TOKEN[:-1]), id="shorter"),
        pytest.param(_shows(TOKEN + "x"), id="longer"),
        pytest.param(_shows(""), id="empty"),
        pytest.param([("authorization", TOKEN)], id="no-scheme"),
        pytest.param([("authorization", f"Basic {TOKEN}")], id="other-scheme"),
        pytest.param([("authorization", f"bearer {TOKEN}".encode())], id="bytes"),
        pytest.param(_shows(TOKEN) * 2, id="twice"),
        pytest.param(_shows("wrong") + _shows(TOKEN), id="wrong-and-right"),
    ],
)
def test_who_does_not_show_the_token_is_refused(
    metadata: list[tuple[str, str | bytes]], tmp_path: Path
) -> None:
    check = TokenCheck(_token_file(tmp_path))
    with pytest.raises(UnauthenticatedError) as caught:
        check.check(metadata)
    assert TOKEN not in str(caught.value)
    check.check(_shows(TOKEN))


def test_a_changed_token_holds_at_once_and_a_file_that_cannot_be_used_lets_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = "another-token-of-some-length"
    check = TokenCheck(_token_file(tmp_path))
    _token_file(tmp_path, other)
    check.check(_shows(other))
    with pytest.raises(UnauthenticatedError):
        check.check(_shows(TOKEN))
    (tmp_path / "token").unlink()
    for _ in range(2):
        with pytest.raises(UnauthenticatedError):
            check.check(_shows(other))
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert errors[0].startswith("admin calls are refused until the token file can be used")
    _token_file(tmp_path, mode=0o644)
    with pytest.raises(UnauthenticatedError):
        check.check(_shows(TOKEN))
    _token_file(tmp_path)
    check.check(_shows(TOKEN))
    assert other not in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        pytest.param(TOKEN, 0o644, "mode 0644, expected none but its owner", id="world-readable"),
        pytest.param(TOKEN, 0o602, "mode 0602", id="world-writable"),
        pytest.param(TOKEN, 0o660, "mode 0660", id="group-writable"),
        pytest.param("", 0o600, "holds no token", id="empty"),
        pytest.param("short", 0o600, "holds no token, expected one line of 16", id="short"),
        pytest.param("two lines of text\nthe second", 0o600, "holds no token", id="lines"),
        pytest.param("ümläute-are-not-for-headers", 0o600, "holds no token", id="not-ascii"),
        pytest.param("x" * 5000, 0o600, "holds no token", id="long"),
    ],
)
def test_a_token_file_must_hold_a_token_and_be_its_owners(
    text: str, mode: int, complaint: str, tmp_path: Path
) -> None:
    path = _token_file(tmp_path, text, mode)
    for use in (read_token, TokenCheck):
        with pytest.raises(SecurityError, match=complaint) as caught:
            use(path)
        assert TOKEN not in str(caught.value)


def test_a_group_may_read_the_token_as_mounted_secrets_are(tmp_path: Path) -> None:
    assert read_token(_token_file(tmp_path, mode=0o440)) == TOKEN


def test_a_token_file_that_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(SecurityError, match=r"admin\.token_file: cannot read"):
            read_token(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(SecurityError, match=r"admin.token_file: .* is no regular file"):
        read_token(tmp_path / "pipe")
