"""recsys-serve --check-config, and the command line around it: everything that can be known without serving."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from serve.app import cli
from serve.config.options import all_options, sections
from serve.observe.capture_file import header
from tests.recsys.artifact.damage import manifest_of, write_manifest
from tests.support.serve.admin_live import TOKEN, write_token
from tests.support.serve.certificates import Authority, write_tls
from tests.support.serve.repositories import add_version

CapSys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("RECSYS_SERVE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def repository(artifact_path: Path, tmp_path: Path) -> Path:
    root = tmp_path / "models"
    for model, version in (("small", "1"), ("small", "2"), ("other", "7")):
        add_version(root, model, version, artifact_path)
    return root


def _check(arguments: list[str], capsys: CapSys) -> tuple[int, Mapping[str, Any]]:
    capsys.readouterr()
    code = cli.main([*arguments, "--check-config", "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    report: Mapping[str, Any] = json.loads(out)
    assert report["ok"] == (code == 0)
    return code, report


def test_good_settings_are_printed_with_where_they_come_from(
    repository: Path, tmp_path: Path, capsys: CapSys, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority()
    write_tls(tmp_path, authority.issue(), authority.certificate)
    write_token(tmp_path)
    file = tmp_path / "serve.toml"
    file.write_text(
        """
http_port = 8600
[source]
repository = "models"
[tls]
certificate = "server.crt"
key = "server.key"
client_ca = "clients.crt"
[admin]
token_file = "admin.token"
[models.small]
num_executors = 2
[models.small.routing]
canary = "1"
canary_percent = 5
"""
    )
    monkeypatch.setenv("RECSYS_SERVE_DEFAULTS_LIMITS_MAX_BATCH_ROWS", "64")
    code, report = _check(["--config", str(file), "--host", "0.0.0.0", "--models", "small,other"], capsys)
    assert (code, report["errors"], report["warnings"]) == (0, [], [])
    settings = report["settings"]
    assert settings["host"] == {"value": "0.0.0.0", "from": "--host"}
    assert settings["http_port"] == {"value": 8600, "from": str(file)}
    assert settings["metrics_port"] == {"value": 8501, "from": "default"}
    assert settings["source.models"] == {"value": ["small", "other"], "from": "--models"}
    assert settings["source.repository"] == {"value": str(repository), "from": str(file)}
    limit = settings["defaults.limits.max_batch_rows"]
    assert limit == {"value": 64, "from": "RECSYS_SERVE_DEFAULTS_LIMITS_MAX_BATCH_ROWS"}
    assert settings["models.small.routing.canary"] == {"value": "1", "from": str(file)}
    assert "trace.endpoint" not in settings

    assert cli.main(["--config", str(file), "--check-config"]) == 0
    out = capsys.readouterr().out
    assert "the settings can be used" in out
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["http_port"]]
    assert row[:2] == ["http_port", "8600"]  # the path may go on in the next line
    assert TOKEN not in out


def _add(text: str) -> Callable[[Path], list[str]]:
    """Settings of a file."""

    def arguments(folder: Path) -> list[str]:
        (folder / "add.toml").write_text(text)
        return ["--config", str(folder / "add.toml")]

    return arguments


def _broken_manifest(folder: Path) -> list[str]:
    manifest = folder / "models" / "small" / "1" / "manifest.json"
    manifest.unlink()
    manifest.write_text("{}")
    return []


def _short_rows(folder: Path) -> list[str]:
    rows = folder / "models" / "small" / "1" / "rows.bin"
    data = rows.read_bytes()
    rows.unlink()  # It may be a link.
    rows.write_bytes(data[:-1])
    return []


def _missing_graph(folder: Path) -> list[str]:
    (folder / "models" / "small" / "1" / "target-0.pt").unlink()
    return []


def _with_targets(change: Callable[[Any], object]) -> Callable[[Path], list[str]]:
    """Change all targets of a version's manifest, whose digest fits afterwards."""

    def damage(folder: Path) -> list[str]:
        version = folder / "models" / "small" / "1"
        data = manifest_of(version)
        for target in data["targets"]:
            change(target)
        (version / "manifest.json").unlink()  # It may be a link.
        write_manifest(version, data)
        return []

    return damage


def _for_gpus(target: Any) -> None:
    devices = ["cuda:7"] * len(target["devices"])
    target |= {"name": ",".join(devices), "devices": devices}
    target.pop("program", None)


def _for_torch_export(target: Any) -> None:
    for graph in (target, *([target["ranking"]] if "ranking" in target else [])):
        graph |= {"exported": graph["skeleton"], "skeleton": None, "rows": {}, "ranks": {}}
        graph.pop("program", None)


def _loose_token(folder: Path) -> list[str]:
    path = write_token(folder)
    path.chmod(0o644)
    return ["--admin-token-file", str(path)]


def _other_key(folder: Path) -> list[str]:
    authority = Authority()
    tls = write_tls(folder, authority.issue())
    tls.key.write_bytes(authority.issue().key)
    return ["--tls-certificate", str(tls.certificate), "--tls-key", str(tls.key)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param(_broken_manifest, "small, version 1: ", id="manifest"),
        pytest.param(_short_rows, "small, version 1: part 'rows.bin': got [0-9]+ bytes, expected", id="rows"),
        pytest.param(_missing_graph, "small, version 1: part 'target-0.pt': missing", id="graph"),
        pytest.param(
            _with_targets(_for_torch_export),
            "small, version 1: target 'cpu': holds no TorchScript, and no program; run recsys-export --format both",
            id="nothing that runs",
        ),
        pytest.param(
            _with_targets(_for_gpus),
            r"small, version 1: target: got \['cuda:7'.*, expected one whose devices this machine has: \['cpu'",
            id="no device",
        ),
        pytest.param(_loose_token, "admin.token_file: .* has mode 0644", id="token"),
        pytest.param(_other_key, "expected a certificate in PEM and its own key", id="key"),
        pytest.param(
            lambda _: ["--port", "8501"],
            "port and metrics_port: got 8501 for each, expected ports that",
            id="ports",
        ),
        pytest.param(
            lambda _: ["--target", "cuda:9"],
            "target: got 'cuda:9', expected one of cpu, cpu,cpu",
            id="target",
        ),
        pytest.param(
            lambda _: ["--cpus", "65000"], r"defaults.cpus: got \[65000\], expected some of", id="cpus"
        ),
        pytest.param(
            lambda _: ["--models", "smal"],
            "source.models: got 'smal', which is not there; did you mean",
            id="name",
        ),
        pytest.param(
            _add("[models.small.routing]\nserve = '9'"),
            "small: routing.serve: got '9', expected one of its versions: 1, 2",
            id="routing",
        ),
        pytest.param(
            _add("[models.small.routing]\ncanary = '1'\ncanary_percent = 5\ncanary_key = 'feature:usr'"),
            "small, version 1: routing.canary_key: got 'feature:usr', expected a sparse input of the model: 'user'",
            id="key",
        ),
        pytest.param(
            _add("[capture]\npath = 'nowhere/requests'"),
            "capture.path: .*in a folder that can be",
            id="capture",
        ),
        pytest.param(
            _add("[models.small]\nwarm_up = 'gone'"), "models.small.warm_up: .*expected a file", id="warm-up"
        ),
        pytest.param(
            _add("[models.small]\ndeltas = 'models/small/1/manifest.json'"),
            "models.small.deltas: .*expected a folder that can be read",
            id="deltas",
        ),
        pytest.param(
            _add("[models.small]\ndeltas = 'kafka://127.0.0.1:1/t?timeout_s=0.5'"),
            "models.small.deltas: kafka: the brokers of topic t cannot be reached",
            id="brokers",
        ),
    ],
)
def test_what_would_not_work_is_found(
    arguments: Callable[[Path], list[str]], text: str, repository: Path, tmp_path: Path, capsys: CapSys
) -> None:
    more = arguments(tmp_path)
    code, report = _check(["--repository", str(repository), *more], capsys)
    assert code == 2
    assert re.search(text, "\n".join(report["errors"]))
    assert cli.main(["--repository", str(repository), *more, "--check-config"]) == 2
    assert capsys.readouterr().err.startswith("recsys-serve: ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param(
            lambda _: ["--host", "0.0.0.0"], "host: 0.0.0.0 is open to the network without TLS", id="host"
        ),
        pytest.param(
            lambda folder: ["--admin-host", "::", "--admin-token-file", str(write_token(folder))],
            "admin.host: the token crosses the network",
            id="admin",
        ),
        pytest.param(_add("[models.smal]"), "models.smal: no such model; did you mean small", id="model"),
        pytest.param(
            lambda _: ["--rest-pages"], "rest.pages: got true without http_port", id="pages without a port"
        ),
        pytest.param(
            lambda _: ["--max-connections", "2000000000"],
            "connections.max_connections: .*ulimit -n",
            id="files",
        ),
    ],
)
def test_what_may_be_meant_so_is_a_warning(
    arguments: Callable[[Path], list[str]], text: str, repository: Path, tmp_path: Path, capsys: CapSys
) -> None:
    code, report = _check(["--repository", str(repository), *arguments(tmp_path)], capsys)
    if "ulimit" in text and not report["warnings"]:
        pytest.skip("this machine has no limit of open files")
    assert code == 0
    assert re.search(text, "\n".join(report["warnings"]))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        pytest.param([], "source: got neither an artifact nor a repository, expected ARTIFACT or", id="none"),
        pytest.param(
            ["A", "--repository", "R"], r"got an artifact \(ARTIFACT\) and a repository \(--rep", id="both"
        ),
        pytest.param(
            ["A", "--models", "x"], "--models: source.models: got x beside an artifact", id="models"
        ),
        pytest.param(
            ["missing"],
            "which does not exist; expected a folder or file that recsys-export",
            id="no-artifact",
        ),
        pytest.param(["A", "--config", "missing.toml"], "missing.toml: cannot read it", id="no-file"),
        pytest.param(
            ["A", "--metrics-port", "-1"], "--metrics-port: metrics_port: got -1, expected 0", id="range"
        ),
        pytest.param(["A", "--executors=-1"], "--executors: defaults.num_executors: got -1", id="executors"),
        pytest.param(["A", "--admin-port", "1"], "--admin-port: admin.token_file: missing", id="admin"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: list[str], text: str, artifact_path: Path, tmp_path: Path, capsys: CapSys, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    named = [{"A": str(artifact_path), "R": str(tmp_path)}.get(word, word) for word in arguments]
    for more in ([], ["--check-config"]):
        assert cli.main([*named, *more]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert re.search(text, err)


@pytest.mark.parametrize(
    ("package", "flags", "fix"),
    [
        pytest.param("aiohttp", ["--http-port", "0"], "pip install 'aiohttp>=3.10'", id="rest"),
        pytest.param(
            "opentelemetry",
            ["--trace-endpoint", "http://127.0.0.1:4317"],
            "pip install 'opentelemetry-sdk>=1.30' 'opentelemetry-exporter-otlp-proto-grpc>=1.30'",
            id="traces",
        ),
    ],
)
def test_what_needs_a_package_that_is_not_there_says_how_to_install_it(
    package: str,
    flags: list[str],
    fix: str,
    artifact_path: Path,
    capsys: CapSys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _check([str(artifact_path), *flags], capsys)[0] == 0
    monkeypatch.setitem(sys.modules, package, None)
    code, report = _check([str(artifact_path), *flags], capsys)
    assert code == 2
    assert f"package {package} is missing" in report["errors"][0]
    assert cli.main([str(artifact_path), *flags]) == 2
    assert f": {fix}\n" in capsys.readouterr().err


def test_tls_and_the_token_are_both_looked_at(repository: Path, tmp_path: Path, capsys: CapSys) -> None:
    arguments = [*_other_key(tmp_path), *_loose_token(tmp_path)]
    _, report = _check(["--repository", str(repository), *arguments], capsys)
    assert [text.partition(":")[0] for text in report["errors"]] == [
        "tls.certificate, tls.key",
        "admin.token_file",
    ]


def test_what_models_have_from_the_defaults_is_said_once(
    repository: Path, tmp_path: Path, capsys: CapSys
) -> None:
    file = _add(
        "[defaults]\ncpus = [65000]\nwarm_up = 'gone'\n[models.small]\n[models.other]\ncpus = [65001]"
    )
    _, report = _check(["--repository", str(repository), *file(tmp_path)], capsys)
    assert [text.partition(":")[0] for text in report["errors"]] == [
        "defaults.warm_up",
        "defaults.cpus",
        "models.other.cpus",
    ]


def test_a_folder_of_deltas_that_is_not_there_yet_is_a_warning(artifact_path: Path, capsys: CapSys) -> None:
    code, report = _check([str(artifact_path), "--deltas", "later"], capsys)
    assert code == 0
    assert "defaults.deltas: there is nothing at 'later' yet" in report["warnings"]


def test_models_of_a_repository_share_no_folder_of_deltas(repository: Path, capsys: CapSys) -> None:
    assert cli.main(["--repository", str(repository), "--deltas", "all", "--check-config"]) == 2
    assert "recsys-serve: --deltas: defaults.deltas: got 'all' for all models of a" in capsys.readouterr().err


def test_a_warm_up_file_that_is_no_capture_is_found(repository: Path, tmp_path: Path, capsys: CapSys) -> None:
    path = tmp_path / "requests"
    path.write_text("[]" * 20)
    arguments = ["--repository", str(repository), "--warm-up", str(path)]
    code, report = _check(arguments, capsys)
    assert code == 2
    assert report["errors"][0].startswith(
        f"defaults.warm_up: {str(path)!r}: header: got b'[][][][]', expected"
    )
    path.write_bytes(header(1))
    assert _check(arguments, capsys)[0] == 0


def test_a_repository_that_cannot_be_read_is_found(tmp_path: Path, capsys: CapSys) -> None:
    code, report = _check(["--repository", str(tmp_path / "missing")], capsys)
    assert code == 2
    assert "source.repository: cannot read" in report["errors"][0]
    (tmp_path / "empty").mkdir()
    code, report = _check(["--repository", str(tmp_path / "empty")], capsys)
    assert (code, report["errors"]) == (
        2,
        ["source.repository: holds no model, expected at least one folder of versions"],
    )


def test_a_value_of_another_type_is_one_line(capsys: CapSys) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["artifact", "--port", "http"])
    assert caught.value.code == 2
    assert capsys.readouterr().err == "recsys-serve: --port: got 'http', expected a whole number\n"


@pytest.mark.parametrize(
    ("flag", "meant"),
    [("--prot", "--port"), ("--max-batch-row", "--max-batch-rows"), ("--num-executors", "--executors")],
)
def test_an_unknown_flag_says_what_was_probably_meant(flag: str, meant: str, capsys: CapSys) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["artifact", f"{flag}=1"])
    assert caught.value.code == 2
    assert f"did you mean {meant}" in capsys.readouterr().err


def test_help_shows_the_common_settings_on_two_pages(capsys: CapSys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for flag in ("--help", "-h"):
        with pytest.raises(SystemExit) as caught:
            cli.main([flag])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert len(text.splitlines()) <= 90
        flags = set(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE))
        assert {
            "--repository",
            "--port",
            "--help-all",
            "--executors",
            "--max-batch-rows",
            "--tls-key",
        } <= flags
        assert not {"--keepalive-s", "--numa", "--capture-path"} & flags
        # Groups of which nothing is shown are left out.
        assert "capture:" not in text
        assert "recsys-serve model.artifact --port 8500" in text


def test_every_setting_has_its_flag_with_help(capsys: CapSys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help-all"])
    words = capsys.readouterr().out.replace(",", " ").split()
    for option in all_options(sections()):
        names = {option.name, "--no-" + option.name.removeprefix("--")}
        assert names & set(words) or option.name == "ARTIFACT", option.key


def test_flags_without_a_value_turn_on_and_off(artifact_path: Path, capsys: CapSys) -> None:
    for flags, key, value in (
        (["--no-verify-checksums"], "defaults.verify_checksums", False),
        (["--no-verify-checksums", "--verify-checksums"], "defaults.verify_checksums", True),
        (["--allow-non-finite"], "defaults.allow_non_finite", True),
        (["--no-malloc-tuning"], "process.malloc_tuning", False),
        (["--log-as-json"], "log.as_json", True),
        (["--no-metrics"], "metrics_port", None),
    ):
        assert _check([str(artifact_path), *flags], capsys)[1]["settings"][key]["value"] == value
