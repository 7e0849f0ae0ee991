"""The native server's settings are Python's: its table is current, and both say the same of the same words."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from serve import cli
from serve.native import find_server
from tests.serve.certificates import Authority, write_tls
from tests.serve.models import export_small

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "cpp_client" / "config"
SERVER = find_server()
needs_server = pytest.mark.skipif(
    SERVER is None or not SERVER.is_file(), reason="no recsys-server: `make native` builds it"
)
CapSys = pytest.CaptureFixture[str]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_generate", CONFIG / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_settings_is_current(tmp_path: Path) -> None:
    made = tmp_path / "options_table.inc"
    assert _generator().main(["--out", str(made)]) == 0
    assert made.read_text() == (CONFIG / "options_table.inc").read_text(), (
        "run: python cpp_client/config/generate.py"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both servers are called: an artifact, a repository of its own, TLS files and a token."""
    path = tmp_path_factory.mktemp("settings")
    for name in ("A", "models/small/1", "models/other/7"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        export_small(path / name)
    authority = Authority()
    write_tls(path, authority.issue(), authority.certificate)
    (path / "other.key").write_bytes(authority.issue().key)
    for name, text, mode in (("token", "a-token-of-the-tests", 0o600), ("short", "short", 0o600)):
        (path / name).write_text(text)
        (path / name).chmod(mode)
    (path / "loose").write_text("a-token-of-the-tests")
    (path / "loose").chmod(0o644)
    return path


@pytest.fixture(autouse=True)
def _in_the_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("RECSYS_SERVE_"):
            monkeypatch.delenv(name)
    if "folder" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("folder"))


def _python(words: Sequence[str], capsys: CapSys) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        code = cli.main(words)
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def _native(words: Sequence[str]) -> tuple[int, str, str]:
    done = subprocess.run([str(SERVER), *words], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


# Words, variables, the text of serve.toml.
_GOOD: dict[str, tuple[list[str], dict[str, str], str]] = {
    "defaults": (["A"], {}, ""),
    "flags": (["--max-batch-rows=7", "A", "--poll-repository-s", "1e-05", "--cpus", "0", "--host", "é😀"], {}, ""),
    "all-three": (
        ["A", "--config", "./serve.toml", "--max-batch-rows", "66"],
        {"RECSYS_SERVE_HTTP_PORT": "8701", "RECSYS_SERVE_DEFAULTS_LIMITS_MAX_BATCH_ROWS": "65"},
        "port = 8600\nhttp_port = 8700\n[defaults.limits]\nmax_batch_rows = 64\nmax_batch_ids = 1000\n",
    ),
    "named-by-the-environment": (["A"], {"RECSYS_SERVE_CONFIG": "serve.toml"}, "drain_timeout_s = 5"),
    "repository": (["--repository", "models//./", "--models", "small, other"], {}, ""),
    "models": (
        ["--config", "serve.toml"],
        {"RECSYS_SERVE_DEFAULTS_NUM_EXECUTORS": "2"},
        '[source]\nrepository = "models"\n[defaults]\nlimits = {max_batch_rows = 100}\n'
        '[models.small.routing]\nserve = "1"\ncanary = "2"\ncanary_percent = 5\n[models.other]\nwarm_up = "none"\n'
        '[models."with.dots".limits]\nmax_queue_bytes = "1.5GB"\n',
    ),
    "yes-and-no": (
        ["A", "--no-verify-checksums", "--verify-checksums", "--allow-non-finite", "--no-metrics"],
        {"RECSYS_SERVE_LOG_AS_JSON": "YES"},
        "",
    ),
    "security": (
        ["A", "--config", "serve.toml", "--host", "0.0.0.0"],
        {},
        '[tls]\ncertificate = "server.crt"\nkey = "server.key"\nclient_ca = "clients.crt"\n'
        '[admin]\ntoken_file = "token"',
    ),
    "sizes": (["A", "--max-message-bytes", "8 KiB", "--max-queue-bytes", "1.5gb"], {}, ""),
    "capture": (["A", "--capture-path", "requests", "--capture-share", ".5"], {}, ""),
    "warnings": (
        ["A", "--host", "::", "--admin-token-file", "token", "--admin-host", "192.168.0.1", "--config", "serve.toml"],
        {},
        "[models.smal]\n",
    ),
    "too-many-connections": (["A", "--max-connections", "2000000000"], {}, ""),
    "service-links": (
        ["A"],
        {"RECSYS_SERVE_PORT": "tcp://10.0.0.1:8500", "RECSYS_SERVE_PORT_8500_TCP_ADDR": "10.0.0.1"},
        "",
    ),
    "loose-token": (["A", "--admin-token-file", "loose"], {}, ""),
    "short-token": (["A", "--admin-token-file", "short"], {}, ""),
    "missing-token": (["A", "--admin-token-file", "missing"], {}, ""),
    "token-folder": (["A", "--admin-token-file", "models"], {}, ""),
    "other-key": (["A", "--tls-certificate", "server.crt", "--tls-key", "other.key"], {}, ""),
    "missing-key": (["A", "--tls-certificate", "server.crt", "--tls-key", "missing"], {}, ""),
    "one-port-twice": (["A", "--port", "8501", "--http-port", "8501"], {}, ""),
    "missing-cpus": (["A", "--cpus", "65000-65001"], {}, ""),
    "missing-model": (["--repository", "models", "--models", "smal"], {}, ""),
    "missing-version": (
        ["--repository", "models", "--config", "serve.toml"],
        {},
        "[models.small.routing]\nserve = '9'",
    ),
    "missing-capture-folder": (["A", "--capture-path", "nowhere/requests"], {}, ""),
    "missing-warm-up": (["A", "--warm-up", "missing"], {}, ""),
    "missing-repository": (["--repository", "missing"], {}, ""),
}  # fmt: skip


@needs_server
@pytest.mark.parametrize("name", _GOOD)
def test_both_servers_check_the_same_settings_alike(
    name: str, folder: Path, capsys: CapSys, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, environment, file = _GOOD[name]
    (folder / "serve.toml").write_text(file)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    words = [*words, "--check-config", "--json"]
    python, native = _python(words, capsys), _native(words)
    assert native == python
    assert json.loads(native[1])["ok"] is (native[0] == 0)


# What stops the start before anything is looked at.
_WRONG: dict[str, tuple[list[str], dict[str, str], str]] = {
    "no-source": ([], {}, ""),
    "both-sources": (["A", "--repository", "models"], {}, ""),
    "names-beside-an-artifact": (["A", "--models", "a,b"], {}, ""),
    "empty-name": (["--repository", "models", "--models", "a,,b"], {}, ""),
    "missing-artifact": (["missing"], {}, ""),
    "unknown-flag": (["A", "--prot", "1"], {}, ""),
    "unknown-flags": (["A", "B", "--wwwwwwww", "-x", "--num-executors=1"], {}, ""),
    "no-value": (["A", "--port"], {}, ""),
    "flag-for-a-value": (["A", "--port", "--json"], {}, ""),
    "value-for-a-switch": (["A", "--copy-rows=yes"], {}, ""),
    "both-of-two": (["A", "--metrics-port", "1", "--no-metrics"], {}, ""),
    "negative": (["A", "--metrics-port", "-1"], {}, ""),
    "text": (["A", "--port", "it's"], {}, ""),
    "long-text": (["A", "--port", "é" * 100], {}, ""),
    "too-long": (["A", "--port", "1" * 19], {}, ""),
    "size": (["A", "--max-message-bytes", "1 byte"], {}, ""),
    "small-size": (["A", "--max-message-bytes", "1KB"], {}, ""),
    "number": (["A", "--drain-timeout-s", "0x10"], {}, ""),
    "infinite": (["A", "--drain-timeout-s", "inf"], {}, ""),
    "tiny": (["A", "--max-connection-age-s", "1e-9"], {}, ""),
    "cpus": (["A", "--cpus", "3-1"], {}, ""),
    "empty-path": (["A", "--warm-up", ""], {}, ""),
    "choice": (["A", "--log-requests", "some"], {}, ""),
    "beside": (["A", "--max-request-rows", "9000"], {}, ""),
    "share": (["A", "--routing-canary", "3"], {}, ""),
    "share-of-nothing": (["A", "--routing-canary-percent", "3"], {}, ""),
    "half": (["A", "--admin-port", "1"], {}, ""),
    "endpoint": (["A", "--trace-endpoint", "nonsense"], {}, ""),
    "unknown-variable": (["A"], {"RECSYS_SERVE_PROT": "1"}, ""),
    "wrong-variable": (["A"], {"RECSYS_SERVE_LOG_AS_JSON": "maybe"}, ""),
    "half-variable": (["A"], {"RECSYS_SERVE_TLS_KEY": "k"}, ""),
    "no-file": (["A", "--config", "missing.toml"], {}, ""),
    "folder-for-a-file": (["A", "--config", "models"], {}, ""),
    "near-key": (["A", "--config", "serve.toml"], {}, "prot = 1"),
    "key-elsewhere": (["A", "--config", "serve.toml"], {}, "max_batch_rows = 1"),
    "near-table": (["A", "--config", "serve.toml"], {}, "[defalts]\ntarget = 'x'"),
    "key-of-a-model": (["A", "--config", "serve.toml"], {}, "[models.m]\nexecutors = 1"),
    "no-models": (["A", "--config", "serve.toml"], {}, "models = 3"),
    "no-model": (["A", "--config", "serve.toml"], {}, "[models]\nm = 3"),
    "text-for-a-port": (["A", "--config", "serve.toml"], {}, "port = '8500'"),
    "yes-for-a-port": (["A", "--config", "serve.toml"], {}, "port = true"),
    "list-for-a-text": (["A", "--config", "serve.toml"], {}, "host = ['a', \"it's\"]"),
    "table-for-a-text": (["A", "--config", "serve.toml"], {}, "host = {a = 1.5}"),
    "no-table": (["A", "--config", "serve.toml"], {}, "[defaults]\nlimits = 5"),
    "none-for-a-port": (["A", "--config", "serve.toml"], {}, "port = 'none'"),
    "none-in-capitals": (["A", "--config", "serve.toml"], {}, "[defaults]\ntarget = 'NONE'"),
    "cpus-of-the-file": (["A", "--config", "serve.toml"], {}, "[defaults]\ncpus = [0, -1]"),
    "beside-a-default": (["A", "--config", "serve.toml"], {}, "[models.m.limits]\nmax_queue_rows = 10"),
    "beside-a-flag": (
        ["A", "--max-queue-rows", "10", "--config", "serve.toml"],
        {},
        "[models.m.limits]\nmax_request_rows = 20\n[defaults.limits]\nmax_request_rows = 5",
    ),
    "nan": (["A", "--config", "serve.toml"], {}, "drain_timeout_s = nan"),
}  # fmt: skip


@needs_server
@pytest.mark.parametrize("name", _WRONG)
def test_both_servers_refuse_the_same_settings_in_the_same_words(
    name: str, folder: Path, capsys: CapSys, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, environment, file = _WRONG[name]
    (folder / "serve.toml").write_text(file)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    python, native = _python(words, capsys), _native(words)
    assert native[0] == 2
    assert (native[0], native[1], native[2].replace("recsys-server", "recsys-serve")) == python


@needs_server
@pytest.mark.parametrize(
    "text",
    ["port = \nhost = 1", "port = = 4", "a = " + "[" * 100_000, "port = 1\nport = 2", "[a", "cpus = [0 2"],
    ids=["no-value", "two-signs", "deep", "twice", "open-table", "open-list"],
)
def test_what_is_no_toml_is_refused_by_both(text: str, folder: Path, capsys: CapSys) -> None:
    (folder / "serve.toml").write_text(text)
    words = ["A", "--config", "serve.toml"]
    for code, out, err in (_python(words, capsys), _native(words)):
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("recsys-serve: serve.toml: not readable as TOML: ")


@needs_server
@pytest.mark.usefixtures("folder")
def test_both_tables_for_people_have_the_same_cells(capsys: CapSys) -> None:
    words = ["--repository", "models", "--check-config", "--host", "0.0.0.0"]
    python, native = _python(words, capsys), _native(words)
    cells: list[list[list[str]]] = []
    for _, out, _ in (python, native):
        cells.append([line.split() for line in out.splitlines() if line.strip() and "─" not in line])
    assert cells[1] == cells[0]
    assert cells[0][-1] == ["the", "settings", "can", "be", "used"]


@needs_server
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_help_has_every_flag_in_the_same_words(
    columns: int, capsys: CapSys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    python, native = _python(["--help"], capsys)[1], _native(["--help"])[1]
    begin, end = "\nsource:\n", "\nexample:\n"
    assert native[native.index(begin) : native.index(end)] == python[python.index(begin) : python.index(end)]


@needs_server
@pytest.mark.usefixtures("folder")
def test_traces_are_refused_by_the_start_and_found_by_the_check() -> None:
    words = ["A", "--trace-endpoint", "http://127.0.0.1:4317"]
    code, out, err = _native(words)
    assert (code, out) == (2, "")
    assert err.startswith(
        "recsys-serve: trace.endpoint: got 'http://127.0.0.1:4317', expected none: the native server"
    )
    code, out, err = _native([*words, "--check-config", "--json"])
    assert (code, err) == (2, "")
    (text,) = json.loads(out)["errors"]
    assert "sends no traces" in text
