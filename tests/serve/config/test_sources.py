"""Flags, environment and file: one truth, three ways to say it, and what happens to wrong ones."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recsys.options.kinds import INTEGER, NUMBER, SIZE, SWITCH, ConfigError
from serve.config.models import BatchLimits, ModelSettings, Routing
from serve.config.options import all_options, model_sections, sections
from serve.config.settings import ServerConfig, Settings
from serve.config.sources import effective, parse_flags

_OPTIONS = all_options(sections())


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_anything_the_defaults_hold() -> None:
    found = effective({}, {"PATH": "/bin"}, None)
    assert found.settings == Settings()
    assert {origin for _, _, origin in found.rows()} == {"default"}


def test_a_flag_beats_the_environment_that_beats_the_file_that_beats_the_default(tmp_path: Path) -> None:
    file = _write(
        tmp_path,
        "port = 1\nmetrics_port = 1\nhttp_port = 1\n[defaults.limits]\nmax_batch_rows = 1\nmax_batch_ids = 1\n",
    )
    environment = {
        "RECSYS_SERVE_PORT": "2",
        "RECSYS_SERVE_METRICS_PORT": "2",
        "RECSYS_SERVE_DEFAULTS_LIMITS_MAX_BATCH_ROWS": "2",
    }
    found = effective({"port": 3}, environment, file)
    server = found.settings.server
    assert (server.port, server.metrics_port, server.http_port) == (3, 2, 1)
    assert (server.defaults.limits.max_batch_rows, server.defaults.limits.max_batch_ids) == (2, 1)
    origins = {key: origin for key, _, origin in found.rows()}
    assert origins["port"] == "--port"
    assert origins["metrics_port"] == "RECSYS_SERVE_METRICS_PORT"
    assert origins["http_port"] == str(file)
    assert origins["host"] == "default"


def test_the_environment_can_name_the_file_and_a_flag_another(tmp_path: Path) -> None:
    file = _write(tmp_path, "port = 1")
    environment = {"RECSYS_SERVE_CONFIG": str(file)}
    assert effective({}, environment, None).settings.server.port == 1
    other = tmp_path / "other.toml"
    other.write_text("port = 2")
    assert effective({}, environment, other).settings.server.port == 2


# A value for each setting that differs from its default, as TOML and as text.
_EXAMPLES: dict[str, tuple[str, str]] = {
    "host": ('"0.0.0.0"', "0.0.0.0"),
    "admin.host": ('"::1"', "::1"),
    "log.requests": ('"all"', "all"),
    "quality.scores": ('"logit"', "logit"),
    "quality.labels": ('"kafka://a:9092/t"', "kafka://a:9092/t"),
    "process.engine": ('"reference"', "reference"),
    "defaults.routing.serve": ('"7"', "7"),
    "defaults.routing.canary_key": ('"feature:user"', "feature:user"),
    "trace.endpoint": ('"http://127.0.0.1:4317"', "http://127.0.0.1:4317"),
    "defaults.numa": ('"local"', "local"),
    "defaults.cpus": ("[0, 1, 2, 5]", "0-2,5"),
    "defaults.cuda_graph_rows": ("[1, 8, 32]", "1,8,32"),
    "defaults.rows": ('"redis://a:6379"', "redis://a:6379"),
    "defaults.rows_replicas": ('"redis://b:6379"', "redis://b:6379"),
    "source.models": ('["a", "b"]', "a,b"),
}
# What else must be there so that a setting may be.
_BESIDE: dict[str, dict[str, str]] = {
    "admin.routing_file": {"admin.token_file": "t"},
    "defaults.routing.canary": {"defaults.routing.canary_percent": "50"},
    "defaults.routing.canary_percent": {"defaults.routing.canary": "9"},
    "defaults.routing.canary_key": {
        "defaults.routing.canary": "9",
        "defaults.routing.canary_percent": "50",
    },
    "defaults.routing.shadow": {"defaults.routing.shadow_percent": "50"},
    "defaults.routing.shadow_percent": {"defaults.routing.shadow": "9"},
    "defaults.limits.max_request_rows": {"defaults.limits.max_queue_rows": "100000"},
    "defaults.limits.max_request_ids": {"defaults.limits.max_queue_ids": "10000000"},
    "defaults.numa": {"defaults.copy_rows": "true"},
    "defaults.rows_replicas": {"defaults.rows": "redis://a:6379"},
    "trace.share": {"trace.endpoint": "http://127.0.0.1:4317"},
    "tls.certificate": {"tls.key": "k"},
    "tls.key": {"tls.certificate": "c"},
    "tls.client_ca": {"tls.certificate": "c", "tls.key": "k"},
    "admin.host": {"admin.token_file": "t"},
    "admin.port": {"admin.token_file": "t"},
    "capture.share": {"capture.path": "c"},
    "capture.max_bytes": {"capture.path": "c"},
    "answer_log.hash_key_file": {"answer_log.destination": "d"},
    "answer_log.leave_out": {"answer_log.destination": "d"},
    "answer_log.max_file_age_s": {"answer_log.destination": "d"},
    "answer_log.max_file_bytes": {"answer_log.destination": "d"},
    "answer_log.max_files": {"answer_log.destination": "d"},
    "answer_log.max_waiting_bytes": {"answer_log.destination": "d"},
    "answer_log.share": {"answer_log.destination": "d"},
    "answer_log.hash": {"answer_log.destination": "d", "answer_log.hash_key_file": "k"},
}


def _example(option: Any) -> tuple[str, str]:
    if option.key in _EXAMPLES:
        return _EXAMPLES[option.key]
    default = option.default
    if option.kind is SWITCH:
        word = str(not default).lower()
        return word, word
    if option.kind is NUMBER:
        return "0.5", "0.5"
    if option.kind in (INTEGER, SIZE):
        number = str(8600 if default is None else default + 1)
        return number, number
    return '"/some/where"', "/some/where"


@pytest.mark.parametrize("option", _OPTIONS, ids=lambda option: option.key)
def test_every_setting_means_the_same_in_all_three_ways(option: Any, tmp_path: Path) -> None:
    in_file, text = _example(option)
    beside = parse_flags(_BESIDE.get(option.key, {}))
    *tables, name = option.path
    head = f"[{'.'.join(tables)}]\n" if tables else ""
    file = _write(tmp_path, f"{head}{name} = {in_file}\n")
    from_file = effective(beside, {}, file)
    from_environment = effective(beside, {option.environment: text}, None)
    from_flag = effective({**beside, option.key: option.from_text(text)}, {}, None)
    assert from_file.settings == from_environment.settings == from_flag.settings
    assert from_file.settings != effective({}, {}, None).settings
    origins = [{k: o for k, _, o in e.rows()}[option.key] for e in (from_file, from_environment, from_flag)]
    assert origins == [str(file), option.environment, option.name]


def test_names_are_unique_and_every_setting_is_explained() -> None:
    for names in ([o.name for o in _OPTIONS], [o.environment for o in _OPTIONS], [o.key for o in _OPTIONS]):
        assert [name for name, times in Counter(names).items() if times > 1] == []
    everything = [*_OPTIONS, *all_options(model_sections("m"))]
    assert [option.key for option in everything if not option.about] == []


def test_every_field_of_every_dataclass_is_a_setting() -> None:
    keys = {option.key for option in _OPTIONS}
    for field in dataclasses.fields(ServerConfig):
        assert any(key == field.name or key.startswith(field.name + ".") for key in keys | {"models."}), (
            field.name
        )
    assert {f"defaults.limits.{field.name}" for field in dataclasses.fields(BatchLimits)} <= keys
    assert {f"defaults.routing.{field.name}" for field in dataclasses.fields(Routing)} <= keys


def test_models_differ_from_the_defaults_where_they_say_so(tmp_path: Path) -> None:
    file = _write(
        tmp_path,
        """
[defaults]
num_executors = 2
limits = {max_batch_rows = 100}
[models.ranker]
limits = {max_batch_ids = 77}
[models.ranker.routing]
serve = "3"
canary = "4"
canary_percent = 5
[models."with.dots"]
""",
    )
    found = effective({"defaults.limits.max_batch_rows": 200}, {}, file)
    server = found.settings.server
    assert server.models["ranker"] == ModelSettings(
        num_executors=2,
        limits=BatchLimits(max_batch_rows=200, max_batch_ids=77),
        routing=Routing(serve="3", canary="4", canary_percent=5.0),
    )
    assert server.models["with.dots"] == server.defaults == server.settings_of("another")
    rows = {key: (value, origin) for key, value, origin in found.rows()}
    assert rows["models.ranker.limits.max_batch_ids"] == (77, str(file))
    assert "models.ranker.num_executors" not in rows


def test_paths_of_the_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    file = _write(
        tmp_path, '[tls]\ncertificate = "tls/crt.pem"\nkey = "/abs/key.pem"\n[source]\nartifact = "a"'
    )
    settings = effective({}, {}, file).settings
    assert settings.server.tls is not None
    assert (settings.server.tls.certificate, settings.server.tls.key) == (
        tmp_path / "tls/crt.pem",
        Path("/abs/key.pem"),
    )
    assert settings.source.artifact == tmp_path / "a"


@pytest.mark.parametrize("text", ["none", "None", "NONE"])
def test_none_takes_a_port_away(text: str, tmp_path: Path) -> None:
    assert effective(parse_flags({"metrics_port": text}), {}, None).settings.server.metrics_port is None
    file = _write(tmp_path, 'metrics_port = "none"')
    assert effective({}, {}, file).settings.server.metrics_port is None


def test_sizes_may_have_units(tmp_path: Path) -> None:
    file = _write(tmp_path, '[connections]\nmax_message_bytes = "8MiB"')
    assert effective({}, {}, file).settings.server.connections.max_message_bytes == 8 << 20
    flags = {"defaults.limits.max_queue_bytes": "1.5GB"}
    assert (
        effective(parse_flags(flags), {}, None).settings.server.defaults.limits.max_queue_bytes
        == 1_500_000_000
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("prot = 1", "prot: unknown key, expected one of .*; did you mean port", id="near"),
        pytest.param("max_batch_rows = 1", "did you mean defaults.limits.max_batch_rows", id="elsewhere"),
        pytest.param("[defalts]\ntarget = 'x'", "defalts: unknown key.*did you mean defaults", id="table"),
        pytest.param(
            "[models.m]\nexecutors = 1", "models.m.executors: unknown key.*num_executors", id="model"
        ),
        pytest.param("[models.a.b]\ntarget = 'x'", "models.a.b: unknown key", id="dots"),
        pytest.param("models = 3", r"models: got '3', expected tables \[models.NAME\]", id="models"),
        pytest.param("[models]\nm = 3", "models.m: got '3', expected a table", id="model-value"),
        pytest.param("port = '8500'", "port: got '8500', expected a whole number", id="text-port"),
        pytest.param("port = 85.0", "port: got '85.0', expected a whole number", id="float-port"),
        pytest.param("port = true", "port: got 'True', expected a whole number", id="bool-port"),
        pytest.param("port = 65536", "port: got 65536, expected 0 to 65535", id="range"),
        pytest.param("[log]\nas_json = 1", "log.as_json: got '1', expected true or false", id="bool"),
        pytest.param(
            "[log]\nrequests = 'some'", "log.requests: got 'some', expected none, errors or all", id="choice"
        ),
        pytest.param("[admin]\nport = 1", "admin.token_file: missing, expected it beside", id="missing"),
        pytest.param("[admin]\ntoken_file='t'\nport = 99999", "admin.port: got 99999", id="nested-range"),
        pytest.param(
            "[defaults]\ncpus = '3-1'", "defaults.cpus: got '3-1', expected numbers such as", id="cpus"
        ),
        pytest.param("[defaults]\ncpus = '0-999999999'", "defaults.cpus: got", id="too-many-cpus"),
        pytest.param("[defaults]\ncpus = [-1]", "defaults.cpus: got", id="negative-cpu"),
        pytest.param("[defaults]\nlimits = 5", "defaults.limits: got '5', expected a table", id="no-table"),
        pytest.param("host = ['a']", "host: got .* expected a text", id="list"),
        pytest.param("drain_timeout_s = nan", "drain_timeout_s: got nan", id="nan"),
        pytest.param("poll_repository_s = inf", "poll_repository_s: got inf", id="inf"),
        pytest.param("[connections]\nmax_connection_age_s = inf", "max_connection_age_s: got inf", id="age"),
        pytest.param("[connections]\nmax_message_bytes = '1 byte'", "expected a size such as", id="size"),
        pytest.param(
            "[models.m.limits]\nmax_queue_rows = 10",
            "models.m.limits.max_request_rows: got 4096, expected at most max_queue_rows",
            id="beside-a-default",
        ),
        pytest.param(
            "[models.m.routing]\ncanary = '4'", "models.m.routing.canary_percent: got 0.0", id="routing"
        ),
        pytest.param("port = \nhost = 1", "not readable as TOML: .*line 1", id="toml"),
        pytest.param("a = " + "[" * 100_000, "not readable as TOML", id="deep"),
    ],
)
def test_wrong_files_are_refused_with_the_file_the_key_and_what_is_expected(
    text: str, complaint: str, tmp_path: Path
) -> None:
    file = _write(tmp_path, text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        effective({}, {}, file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot read it: No such file"):
        effective({}, {}, tmp_path / "missing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not readable as TOML"):
        effective({}, {}, tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        pytest.param(
            {"RECSYS_SERVE_PROT": "1"}, "^RECSYS_SERVE_PROT: unknown .*RECSYS_SERVE_PORT", id="near"
        ),
        pytest.param(
            {"RECSYS_SERVE_PORT": "x"}, "^RECSYS_SERVE_PORT: port: got 'x', expected a whole", id="type"
        ),
        pytest.param(
            {"RECSYS_SERVE_PORT": "-1"}, "^RECSYS_SERVE_PORT: port: got -1, expected 0 to", id="range"
        ),
        pytest.param({"RECSYS_SERVE_LOG_AS_JSON": "maybe"}, "expected true or false", id="bool"),
        pytest.param({"RECSYS_SERVE_TLS_KEY": ""}, "tls.key: got '', expected a path", id="empty-path"),
        pytest.param(
            {"RECSYS_SERVE_TLS_KEY": "k"}, "^RECSYS_SERVE_TLS_KEY: tls.certificate: missing", id="half"
        ),
        pytest.param({"RECSYS_SERVE_PORT_8500_TPC": "1"}, "unknown environment name", id="no-service-link"),
    ],
)
def test_wrong_environments_are_refused(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        effective({}, environment, None)


def test_what_kubernetes_says_of_a_service_of_our_name_is_no_setting() -> None:
    links = {
        "RECSYS_SERVE_SERVICE_HOST": "10.0.0.1",
        "RECSYS_SERVE_SERVICE_PORT": "8500",
        "RECSYS_SERVE_SERVICE_PORT_GRPC": "8500",
        "RECSYS_SERVE_PORT": "tcp://10.0.0.1:8500",
        "RECSYS_SERVE_PORT_8500_TCP": "tcp://10.0.0.1:8500",
        "RECSYS_SERVE_PORT_8500_TCP_ADDR": "10.0.0.1",
        "RECSYS_SERVE_CANARY_PORT": "tcp://10.0.0.2:8500",
        "RECSYS_SERVE_CANARY_SERVICE_HOST": "10.0.0.2",
    }
    assert effective({}, links, None).settings == Settings()
