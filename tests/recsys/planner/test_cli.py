"""recsys-plan, as a user meets it: reports, files, pages, exit codes."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.models.click import build_dlrm
from recsys.planner.cli import main
from recsys.planner.cost.topology import Topology
from recsys.sharding.plan.plan import ShardingPlan, check_plan
from tests.recsys.planner.sets import topology

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;[red]"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Tables in JSON, one with a name that is not to be trusted."""
    names = [*(f"t{i}" for i in range(5)), HOSTILE.replace(".", "")]
    path = tmp_path / "tables.json"
    path.write_text(
        json.dumps(
            [{"name": n, "num_embeddings": 1000 * (i + 1), "embedding_dim": 64} for i, n in enumerate(names)]
        )
    )
    return path


def run(*words: object) -> int:
    return main([str(word) for word in words])


def failed(code: int, *words: object) -> None:
    """Bad usage that argparse finds ends the process; ours is a return value."""
    try:
        assert run(*words) == code
    except SystemExit as stop:
        assert stop.code == code  # noqa: PT017


def test_a_checkpoint_is_planned_reported_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: dict[str, Any] = {
        "tables": [
            {
                "name": f"t{i}",
                "num_embeddings": 100 * (i + 1),
                "embedding_dim": 16,
                "feature_names": [f"f{i}"],
            }
            for i in range(3)
        ],
        "dense_in_features": 4,
        "dense_arch_layer_sizes": [8, 16],
        "over_arch_layer_sizes": [8, 1],
    }
    model = build_dlrm(**arguments)
    path = tmp_path / "model.pt"
    save_checkpoint(
        path,
        Checkpoint(
            factory="recsys.models.click:build_dlrm", arguments=arguments, state_dict=model.state_dict()
        ),
    )
    assert run(path, "--world-size", 2, "--hbm", "80GB") == 0
    out = capsys.readouterr().out
    for word in ("table", "sharding", "kernel", "ranks", "imbalance", "worst rank", "HBM of 68.0 GB", "█"):
        assert word in out
    plan = ShardingPlan.from_json(json.loads((tmp_path / "model.plan.json").read_text()))
    for path_in_model, group in plan.plan.items():
        check_plan(model.get_submodule(path_in_model).embedding_bag_configs(), group, 2)
    assert (tmp_path / "model.plan.html").read_text().startswith("<!doctype html>")
    assert run(path, "--world-size", 2, "--dtype", "int8", "--device", "cpu", "--force", "--no-html") == 0


def test_plan_and_report_as_json(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tables, "--world-size", 4, "--hbm", "1GiB", "--reserve", 0, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["report"]["hbm_capacity_bytes"] == 2**30
    assert len(printed["report"]["ranks"]) == 4
    written = json.loads((tables.parent / "tables.plan.json").read_text())
    assert printed["plan"] == written


def test_a_plan_that_is_there_is_not_overwritten_unasked(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tables.parent / "mine.json"
    out.write_text("edited by hand")
    assert run(tables, "--out", out) == 2
    assert "--out: 'mine.json' is there already" in capsys.readouterr().err
    assert out.read_text() == "edited by hand"
    assert run(tables, "--out", out, "--force") == 0
    assert run(tables, "--plan", out) == 0


def test_an_edited_plan_is_shown_and_its_overflow_is_an_exit_code(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tables.parent / "plan.json"
    assert run(tables, "--world-size", 2, "--out", out, "--no-html") == 0
    plan = json.loads(out.read_text())
    for name, table in plan[""].items():
        rows = 1000 * (list(plan[""]).index(name) + 1)
        shard = {"shard_offsets": [0, 0], "shard_sizes": [rows, 64], "rank": 1}
        plan[""][name] = {
            **table,
            "sharding_type": "table_wise",
            "compute_kernel": "fused",
            "shards": [shard],
        }
    edited = tables.parent / "edited.json"
    edited.write_text(json.dumps(plan))
    capsys.readouterr()
    assert run(tables, "--world-size", 2, "--plan", edited, "--no-html") == 0
    assert "worst rank 1" in capsys.readouterr().out
    assert run(tables, "--world-size", 2, "--plan", edited, "--no-html", "--hbm", "5MB") == 1
    assert "does NOT fit: ranks 1" in capsys.readouterr().out


def test_diff_says_what_changed_as_diff_does(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tables.parent / "a.json", tables.parent / "b.json"
    assert run(tables, "--world-size", 2, "--out", first, "--no-html") == 0
    constraints = tables.parent / "constraints.json"
    constraints.write_text(json.dumps({"t4": {"sharding_types": ["row_wise"]}}))
    assert run(tables, "--world-size", 2, "--out", second, "--no-html", "--constraints", constraints) == 0
    capsys.readouterr()
    assert run("diff", first, first) == 0
    assert capsys.readouterr().out == ""
    assert run("diff", first, second) == 1
    assert re.search(
        r"^t4: .* → row_wise fused on ranks 0-1 \(2500×64\)$", capsys.readouterr().out, re.MULTILINE
    )
    assert run("diff", first, tables) == 2
    assert "plan 'tables.json': " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (1, ["--hbm", "1MB", "--ddr", "0"], "bytes short of device memory"),
        (1, ["--topology", "missing.json"], "topology: cannot read 'missing.json'"),
        (1, ["--constraints", "missing.json"], "constraints: cannot read"),
        (2, ["--device", "cpu", "--hbm", "1GB"], "--hbm: a cpu has none"),
        (2, ["--world-size", "8", "--local-world-size", "3"], "expected a divisor of the 8 ranks"),
        (2, ["--world-size", "0"], "expected a whole number of at least 1"),
        (2, ["--hbm", "lots"], "expected a size such as 80GB"),
        (2, ["--hbm", "5iB"], "expected a size such as 80GB"),
        (2, ["--reserve", "100"], "expected 0 to below 100"),
        (2, ["--row-optimizer", "adamw"], "got 'adamw'"),
        (2, ["--row-optimizer", "adam", "--dtype", "int8"], "--row-optimizer: got it with --dtype"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_exit_codes(
    code: int, words: list[str], message: str, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed(code, tables, *words)
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tables.parent / "tables.plan.json").exists()


def test_a_missing_model_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "model.pt") == 1
    assert "no such file" in capsys.readouterr().err
    assert run(tmp_path) == 2
    assert f"got the folder '{tmp_path}', expected a file" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--out"], ["--html"], ["calibrate", "--out"]], ids=" ".join)
def test_a_folder_that_is_missing_is_found_before_the_work(
    words: list[str], tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tables.parent / "missing" / "file"
    failed(2, *words[:-1], *([] if "calibrate" in words else [tables]), words[-1], path)
    assert f"{words[-1]}: got '{path}', expected a file in a folder" in capsys.readouterr().err
    assert [found.name for found in tables.parent.iterdir()] == [tables.name]


def test_a_plan_in_the_place_of_tables_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text('{"ebc": {}}')
    assert run(tmp_path / "plan.json") == 2
    assert capsys.readouterr().err == (
        "recsys-plan: MODEL: got 'plan.json', a sharding plan; expected a checkpoint or a list of tables: "
        "recsys-plan MODEL --plan plan.json estimates the plan\n"
    )
    (tmp_path / "plan.json").write_text('{"tables": [1]}')
    assert run(tmp_path / "plan.json") == 1
    assert "recsys-plan: tables: got " in capsys.readouterr().err


def test_a_plan_for_more_ranks_is_an_error(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tables.parent / "three.json"
    assert run(tables, "--world-size", 3, "--device", "cpu", "--out", plan, "--no-html", "--json") == 0
    for words, given in (([], 1), (["--world-size", 2], 2)):
        assert run(tables, "--plan", plan, "--device", "cpu", *words) == 2
        assert capsys.readouterr().err == (
            f"recsys-plan: --plan: got a plan for 3 ranks, expected one for {given}: --world-size 3 estimates it\n"
        )


def test_a_file_in_the_place_of_a_topology_is_named(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tables.parent / "plan.json").write_text('{"ebc": {}}')
    assert run(tables, "--topology", tables.parent / "plan.json") == 1
    assert capsys.readouterr().err == (
        "recsys-plan: topology 'plan.json': topology.compute_device: missing; expected what recsys-plan calibrate "
        "wrote\n"
    )


def test_a_topology_file_is_used_and_changed_by_options(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tables.parent / "topology.json"
    path.write_text(json.dumps(topology(4, 2, "cpu").to_json()))
    assert run(tables, "--topology", path, "--world-size", 8, "--ddr", "2GB", "--json", "--reserve", 0) == 0
    report = json.loads(capsys.readouterr().out)["report"]
    assert (report["compute_device"], report["world_size"], report["local_world_size"]) == ("cpu", 8, 2)
    assert report["ddr_capacity_bytes"] == 2 * 10**9
    failed(2, tables, "--topology", path, "--device", "cuda", "--force")


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run("--help")
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out
    assert "exit codes: 0 planned" in out
    for command in ("calibrate", "diff"):
        with pytest.raises(SystemExit):
            run(command, "--help")
        assert "exit codes: 0 " in capsys.readouterr().out


class Page(HTMLParser):
    """What a browser would make of the page: elements, and the text of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._is_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_data = tag == "script" and ("id", "data") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._is_data = False

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data += data


def test_the_page_is_one_file_and_names_are_text(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile_file = tables.with_name("<img src=x onerror=alert(3)>.json")
    hostile_file.write_text(tables.read_text())
    html = tables.parent / "page.html"
    assert run(hostile_file, "--world-size", 2, "--html", html, "--out", tables.parent / "p.json") == 0
    assert "[red]" in capsys.readouterr().out
    page = Page()
    page.feed(html.read_text())
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not [tag for tag, _ in page.tags if tag in ("img", "link", "iframe", "object", "base")]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert not [v for _, attributes in page.tags for k, v in attributes.items() if k in ("src", "href")]
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    data = json.loads(page.data)
    assert HOSTILE.replace(".", "") in {t["name"] for t in data["tables"]}
    for table in data["tables"]:
        held = sum(s["bytes"] * (to - first + 1) for s in table["shards"] for first, to in s["ranks"])
        assert held == table["hbm_bytes"] + table["ddr_bytes"]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_calibrate_measures_this_machine(
    num_ranks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "topology.json"
    assert run("calibrate", "--device", "cpu", "--world-size", num_ranks, "--seconds", 0.2, "--out", out) == 0
    made = Topology.from_json(json.loads(out.read_text()))
    assert (made.compute_device, made.world_size) == ("cpu", num_ranks)
    # Far wider than any machine: what is wrong by a unit is outside.
    assert 1e8 < made.ddr.bandwidth < 1e13
    assert 1e7 < made.ddr.row_read_bandwidth < 1e13
    assert 0 <= made.ddr.row_read_ns < 1e5
    assert 0 <= made.ddr.row_update_ns < 1e5
    printed = capsys.readouterr().out
    assert ("(default, not measured)" in printed) == (num_ranks == 1)
    if num_ranks == 2:
        assert 1e6 < made.intra_host.bandwidth < 1e13
        assert 0 < made.intra_host.latency_us < 1e7


def test_calibrate_refuses_a_device_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert run("calibrate", "--device", "cuda", "--out", tmp_path / "t.json") == 1
    assert "device: got cuda, expected one that this machine has: cpu" in capsys.readouterr().err
    failed(2, "calibrate", "--seconds", 0, "--out", tmp_path / "t.json")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none")
def test_calibrate_measures_a_cuda_device(tmp_path: Path) -> None:
    out = tmp_path / "topology.json"
    assert run("calibrate", "--device", "cuda", "--world-size", 1, "--seconds", 2, "--out", out) == 0
    made = Topology.from_json(json.loads(out.read_text()))
    assert made.hbm is not None
    assert 1e10 < made.hbm.bandwidth < 1e14
    assert 1e9 < made.host_link.bandwidth < 1e13
