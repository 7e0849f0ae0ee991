"""Dashboard, rules and alerts ask for metrics and labels that the server has, and so do the docs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve.config.models import BatchLimits
from serve.metrics.counters import ModelCounters, ModelDescription
from serve.metrics.registry import Metrics
from serve.metrics.streams import StreamStatus
from tests.deploy.promql import PromqlError, Reader
from tests.support.serve.quality import quality_collector

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboard.json"
RECORDING, ALERTS = (ROOT / "deploy" / "prometheus" / name for name in ("recording.yml", "alerts.yml"))
PAGE = ROOT / "docs" / "operate" / "metrics.md"
# What Prometheus adds to all that it scrapes.
TARGET = frozenset({"job", "instance"})


def metrics_of_a_server() -> dict[str, frozenset[str]]:
    """Every name that can be asked for, with its labels."""
    metrics = Metrics()
    model = ModelCounters("m", "1")
    metrics.add(model)
    model.set_table_bytes({"t": 1})
    model.describe(ModelDescription(target="cpu", digest="d", num_executors=1, limits=BatchLimits()))
    metrics.set_state("m", "1", "ready")
    metrics.set_stream("m", "1", StreamStatus(last="1.delta", last_created_s=1.0))
    metrics.registry.register(quality_collector())
    names: dict[str, set[str]] = {"up": set()}
    for family in metrics.registry.collect():
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return {name: frozenset(labels) | TARGET for name, labels in names.items()}


SERVER = metrics_of_a_server()


def rules(path: Path) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(path.read_text())["groups"]:
        assert set(group) == {"name", "rules"}
        yield from group["rules"]


def with_recorded() -> dict[str, frozenset[str]]:
    """The server's names, and those that the recording rules make of them."""
    known = dict(SERVER)
    for rule in rules(RECORDING):
        known[rule["record"]] = Reader(known).labels(rule["expr"])
    return known


KNOWN = with_recorded()


def test_recorded_names_say_which_labels_they_have() -> None:
    for rule in rules(RECORDING):
        assert set(rule) == {"record", "expr"}
        level, metric, how = rule["record"].split(":")
        assert set(level.split("_")) <= KNOWN[rule["record"]]
        assert metric.startswith("recsys_")
        assert how


@pytest.mark.parametrize("rule", list(rules(ALERTS)), ids=lambda rule: rule["alert"])
def test_alerts_ask_for_what_there_is_and_say_what_to_do(rule: dict[str, Any]) -> None:
    labels = Reader(KNOWN).labels(rule["expr"])
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description"}
    asked = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
    assert set(asked) <= labels
    assert re.fullmatch(r"\d+m", rule.get("for", "0m"))


def test_no_two_alerts_have_one_name() -> None:
    names = [rule["alert"] for rule in rules(ALERTS)]
    assert len(names) == len(set(names)) >= 20


@pytest.mark.parametrize(
    "name",
    ["rejected", "failed", "ready", "loading", "different", "le=", "process_start_time_seconds"],
)
def test_what_goes_wrong_has_an_alert(name: str) -> None:
    texts = " ".join(rule["expr"] for path in (ALERTS, RECORDING) for rule in rules(path))
    assert name in texts


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def plain(expression: str) -> str:
    """Grafana's variables, put in as it does."""
    return expression.replace("$__rate_interval", "5m").replace("$__all", ".*")


def test_panels_ask_for_what_there_is(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    num_targets = 0
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            num_targets += 1
            expression = plain(target["expr"])
            labels = Reader(KNOWN).labels(expression)
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, panel["title"]
            assert set(re.findall(r"\$(\w+)", expression)) <= variables
            assert target["datasource"]["uid"] == "${datasource}"
    assert num_targets > 40


def test_variables_and_annotations_ask_for_what_there_is(dashboard: dict[str, Any]) -> None:
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert match is not None
            assert match[2] in Reader(KNOWN).labels(match[1])
    for annotation in dashboard["annotations"]["list"]:
        assert Reader(KNOWN).labels(annotation["expr"]) >= set(
            re.findall(r"{{(\w+)}}", annotation["titleFormat"])
        )


def test_panels_lie_side_by_side(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & covered, panel["title"]
        assert max(x for x, _ in cells) < 24
        covered |= cells


def test_every_metric_of_ours_is_on_the_dashboard(dashboard: dict[str, Any]) -> None:
    text = json.dumps(dashboard)
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in SERVER if "recsys" in name}
    # What waits or runs at this moment; rates of it say nothing that the outcomes do not.
    assert {name for name in families if name not in text} == {"recsys_requests_accepted_total"}


def queries_on_the_page() -> Iterator[str]:
    for block in re.findall(r"```promql\n(.*?)```", PAGE.read_text(), re.DOTALL):
        query = ""
        for line in block.splitlines():
            if query and not line.startswith(" "):
                yield query
                query = ""
            query += line + "\n"
        yield query


@pytest.mark.parametrize("query", list(queries_on_the_page()))
def test_queries_in_the_docs_ask_for_what_there_is(query: str) -> None:
    assert Reader(SERVER).labels(query) is not None


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("sum(rate(recsys_request_total[5m]))", "no metric 'recsys_request_total'"),
        ('recsys_requests_total{outcom="ok"}', "no label 'outcom'"),
        ("sum by (table) (recsys_pending_rows)", "table"),
        ("rate(recsys_requests_total)", "got no range"),
        ("recsys_requests_total[5m]", "got a range"),
        ("sum(recsys_pending_rows", "got the end"),
        ("recsys_pending_rows / on (stage) recsys_executors", "stage"),
        ("histogram_quantile(0.9, sum by (model) (rate(recsys_request_seconds_bucket[5m])))", "le"),
        ("recsys_pending_rows recsys_executors", "behind the expression"),
        ("recsys_pending_rows / ", "expected a metric"),
        ('recsys_requests_total{outcome~"ok"}', "got"),
    ],
)
def test_the_reader_of_queries_finds_what_is_wrong(expression: str, text: str) -> None:
    with pytest.raises(PromqlError, match=re.escape(text)):
        Reader(SERVER).labels(expression)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_agrees() -> None:
    """Prometheus' own reader, and the alerts over series that it makes up."""
    folder = ALERTS.parent
    for command in (
        ["check", "rules", RECORDING.name, ALERTS.name],
        ["test", "rules", "alerts_test.yml"],
    ):
        ran = subprocess.run(
            ["promtool", *command], cwd=folder, capture_output=True, text=True, check=False, timeout=120
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
