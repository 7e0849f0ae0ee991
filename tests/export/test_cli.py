"""The command: every option, exit codes that scripts can trust, errors in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from export.cli import main
from recsys.artifact.load import load_artifact
from recsys.checkpoint import Checkpoint, save_checkpoint
from recsys.inputs.signature import IdPolicy
from recsys.models.click import build_dlrm
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import column_wise, row_wise, table_wise
from tests.support.fork_server import run_python
from tests.support.models.export_models import bare, dlrm

ROOT = Path(__file__).resolve().parents[2]
BARE = ["--factory", "tests.support.models.factories:make_bare"]
PLAIN: dict[str, Any] = {
    "tables": [
        {"name": f"t{i}", "num_embeddings": 20 + i, "embedding_dim": 16, "feature_names": [f"f{i}"]}
        for i in range(3)
    ],
    "dense_in_features": 3,
    "dense_arch_layer_sizes": [16],
    "over_arch_layer_sizes": [8, 1],
}

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """What recsys-train writes."""
    torch.manual_seed(0)
    content = Checkpoint(
        factory="recsys.models.click:build_dlrm",
        arguments=PLAIN,
        state_dict=build_dlrm(**PLAIN).state_dict(),
        info={},
    )
    save_checkpoint(tmp_path / "clicks.pt", content)
    return tmp_path / "clicks.pt"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A plain state dict of ``tests.support.models.export_models.bare``."""
    torch.save(bare().state_dict(), tmp_path / "bare.pth")
    return tmp_path / "bare.pth"


def run(*arguments: str | Path) -> int:
    """The exit code, usage errors included."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def fails(capsys: Capture, code: int, *arguments: str | Path) -> str:
    """Runs into an error: the code, one line on stderr, nothing on stdout."""
    assert run(*arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert printed.err.startswith("recsys-export: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_a_checkpoint_alone(checkpoint: Path, capsys: Capture) -> None:
    assert run(checkpoint) == 0
    artifact = load_artifact(checkpoint.with_name("clicks.artifact"))
    assert artifact.manifest.name == "clicks"
    assert [o.name for o in artifact.signature.outputs] == ["score"]
    printed = capsys.readouterr()
    assert printed.err == ""
    for word in ("t0", "t1", "t2", "INT8", "dB", "score", "max difference", "peak RSS", "clicks.artifact"):
        assert word in printed.out
    passed = r"verified score on cpu: largest difference \S+ from the model on the stored rows \(bound \S+\): passed\n"
    assert re.search(passed, printed.out)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--out", "dlrm.artifact"], "dlrm"),
        (["--out", "dlrm.artifact.pt", "--single-file"], "dlrm"),
        (["--out", "dlrm.artifact", "--name", "other"], "other"),
        (["--out", "7"], "bare"),
        ([], "bare"),
    ],
)
def test_the_report_says_the_name(
    state: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, options: list[str], name: str
) -> None:
    monkeypatch.chdir(state.parent)
    assert run(state, *BARE, *options) == 0
    assert f"model {name!r}, as requests and servers name it\n" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--single-file"]], ids=["directory", "file"])
def test_an_artifact_is_none_to_be_exported(checkpoint: Path, capsys: Capture, options: list[str]) -> None:
    artifact = checkpoint.with_name("artifact")
    assert run(checkpoint, *options, "--out", artifact) == 0
    capsys.readouterr()
    assert "'artifact': this is an artifact already, which recsys-serve takes as" in fails(
        capsys, 1, artifact
    )


def test_of_a_missing_file_nothing_is_said_but_that(tmp_path: Path, capsys: Capture) -> None:
    assert fails(capsys, 1, tmp_path / "gone.pt").endswith("gone.pt': no such file\n")


def test_json_is_one_object(checkpoint: Path, capsys: Capture) -> None:
    assert run(checkpoint, "--json", "--out", checkpoint.with_name("x")) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    report = json.loads(printed.out)
    assert report["path"] == str(checkpoint.with_name("x"))
    assert [t["name"].rpartition(".")[2] for t in report["tables"]] == ["t0", "t1", "t2"]
    table = report["tables"][0]
    assert table["bytes_before"] == 20 * 16 * 4
    assert table["bytes_after"] == 20 * (16 + 4)
    assert table["sqnr_db"] > 30
    assert table["placement"] == {"cpu": "table-wise 0"}
    assert (
        0
        < report["differences"]["cpu"]["score"]["mean_abs"]
        <= report["differences"]["cpu"]["score"]["max_abs"]
    )
    checked = report["checked"]["cpu"]["score"]
    assert 0 <= checked["max_abs"] <= checked["bound"] < 1e-3
    assert report["num_samples"] == 256
    assert report["artifact_bytes"] == sum(f.stat().st_size for f in checkpoint.with_name("x").iterdir())
    assert report["peak_rss_bytes"] > 0
    assert report["seconds"] > 0


def test_every_option_on_tables(state: Path, capsys: Capture) -> None:
    options = ["--dtype", "int4", "--table-dtype", "users=int8", "--table-dtype", "tiny=FP32"]
    policies = ["--id-policy", "hash", "--id-policy", "users=zero", "--id-policy", "wide=reject"]
    assert (
        run(state, *BARE, *options, *policies, "--name", "other", "--json", "--out", state.with_name("a"))
        == 0
    )
    types = {t["name"]: t["data_type"] for t in json.loads(capsys.readouterr().out)["tables"]}
    assert types == {"users": "INT8", "goods": "INT4", "wide": "INT4", "tiny": "FP32"}
    artifact = load_artifact(state.with_name("a"))
    assert artifact.manifest.name == "other"
    found = {use.name: use.id_policy for s in artifact.signature.sparse for use in s.tables}
    assert found == {
        "users": IdPolicy.ZERO,
        "goods": IdPolicy.HASH,
        "wide": IdPolicy.REJECT,
        "tiny": IdPolicy.HASH,
    }


def test_texts_of_features(state: Path, capsys: Capture) -> None:
    out = state.with_name("a")
    hashed = [state, *BARE, "--id-policy", "hash", "--out", out, "--force"]

    def hashes() -> dict[str, str]:
        return {s.name: s.strings for s in load_artifact(out).signature.sparse}

    assert run(*hashed, "--strings", "user", "--strings", "item=xxh64") == 0
    assert hashes() == {"user": "xxh64", "item": "xxh64", "last_item": "", "flag": ""}
    assert run(*hashed, "--strings", "all") == 0
    assert set(hashes().values()) == {"xxh64"}
    capsys.readouterr()
    assert "strings: got unknown features ['who']" in fails(capsys, 1, *hashed, "--strings", "who")


def test_several_targets_and_a_plan(state: Path, tmp_path: Path) -> None:
    users, goods, wide, tiny = bare().embedding_bag_configs()
    plan = ShardingPlan(
        plan={
            "": {
                "users": row_wise(users, [1, 0]),
                "goods": table_wise(goods, 1),
                "wide": column_wise(wide, [0, 1]),
                "tiny": table_wise(tiny, 0),
            }
        }
    )
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    devices = ["--target", "cpu,cpu", "--target", "cuda:0,cuda:1"]
    assert run(state, *BARE, *devices, "--plan", tmp_path / "plan.json", "--out", tmp_path / "a") == 0
    manifest = load_artifact(tmp_path / "a", target="cpu,cpu").manifest
    assert [t.name for t in manifest.targets] == ["cpu,cpu", "cuda:0,cuda:1"]
    assert [t.plan for t in manifest.targets] == [plan, plan]


def test_device_memory(state: Path, tmp_path: Path, capsys: Capture) -> None:
    common = [state, *BARE, "--target", "cpu,cpu", "--out", tmp_path / "a"]
    message = fails(capsys, 1, *common, "--device-memory", "1KB")
    assert "table 'users'" in message
    assert "bytes short" in message
    assert run(*common, "--device-memory", "16GB") == 0


def test_dense_dtype_and_single_file(checkpoint: Path) -> None:
    assert run(checkpoint, "--dense-dtype", "bfloat16", "--single-file") == 0
    artifact = load_artifact(checkpoint.with_name("clicks.artifact.pt"))
    assert artifact.target.dense_dtype == "bfloat16"
    assert checkpoint.with_name("clicks.artifact.pt").is_file()


def test_dense_width(tmp_path: Path, state: Path, capsys: Capture) -> None:
    message = fails(capsys, 1, state, *BARE, "--dense-width", "danse=3", "--out", tmp_path / "a")
    assert "dense_widths: got unknown arguments ['danse']" in message


def test_model_args(tmp_path: Path) -> None:
    torch.save({"state_dict": dlrm(2, 8).state_dict()}, tmp_path / "d.pt")
    arguments = [
        "--factory",
        "tests.support.models.factories:make_dlrm",
        "--factory-args",
        '{"num_tables": 2, "dim": 8}',
    ]
    assert run(tmp_path / "d.pt", *arguments, "--out", tmp_path / "a") == 0


def test_unsafe_pickle(tmp_path: Path, capsys: Capture) -> None:
    torch.save(bare(), tmp_path / "m.pt")
    message = fails(capsys, 1, tmp_path / "m.pt", *BARE, "--out", tmp_path / "a")
    assert "--unsafe-pickle only, and runs the code in it" in message
    assert run(tmp_path / "m.pt", "--unsafe-pickle", "--out", tmp_path / "a") == 0


def test_samples(state: Path, tmp_path: Path, capsys: Capture) -> None:
    good = {"sparse": {"user": [[1, 2], []], "item": [[3], [4]], "last_item": [[], []], "flag": [[0], [2]]}}
    (tmp_path / "good.jsonl").write_text(json.dumps(good) + "\n\n" + json.dumps(good) + "\n")
    common = [state, *BARE, "--json", "--out", tmp_path / "a"]
    assert run(*common, "--samples", tmp_path / "good.jsonl") == 0
    assert json.loads(capsys.readouterr().out)["num_samples"] == 4
    good["sparse"]["flag"] = [[0], [3]]
    (tmp_path / "bad.jsonl").write_text(json.dumps(good) + "\n")
    message = fails(capsys, 1, *common, "--force", "--samples", tmp_path / "bad.jsonl")
    assert "bad.jsonl, line 1, sparse 'flag', row 1: got ID 3, expected 0 <= ID < 3" in message
    fails(capsys, 1, *common, "--force", "--samples", tmp_path / "nowhere.jsonl")


def test_force(checkpoint: Path, capsys: Capture) -> None:
    assert run(checkpoint) == 0
    capsys.readouterr()
    assert "exists; choose another name or pass --force" in fails(capsys, 1, checkpoint)
    assert run(checkpoint, "--force") == 0


BAD_USAGE = {
    "no checkpoint": [],
    "unknown option": ["x.pt", "--nonsense"],
    "row type": ["x.pt", "--dtype", "int3"],
    "dense dtype": ["x.pt", "--dense-dtype", "float16"],
}


@pytest.mark.parametrize("arguments", BAD_USAGE.values(), ids=BAD_USAGE)
def test_bad_usage_is_2(arguments: list[str], capsys: Capture) -> None:
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "recsys-export: " in printed.err


BAD_INPUT: dict[str, tuple[list[str], str]] = {
    "table type": (["--table-dtype", "users=int3"], "--table-dtype: got 'int3', expected one of fp32, fp16"),
    "table type without a table": (
        ["--table-dtype", "int4"],
        "--table-dtype: got 'int4', expected NAME=VALUE",
    ),
    "policy": (["--id-policy", "wrap"], "--id-policy: got 'wrap', expected one of reject, hash, zero"),
    "policy of a table": (["--id-policy", "users=wrap"], "--id-policy: got 'wrap'"),
    "policy of no table": (["--id-policy", "=hash"], "--id-policy: got '=hash', expected [TABLE=]POLICY"),
    "hash": (["--strings", "user=md5"], "strings['user']: got 'md5', expected xxh64"),
    "hash of no feature": (["--strings", "=xxh64"], "--strings: got '=xxh64', expected FEATURE[=HASH]"),
    "device": (["--target", "tpu:0"], "devices: got 'tpu:0', expected cpu or cuda:N"),
    "meta": (["--target", "meta"], "devices: got 'meta'"),
    "no device": (["--target", "cpu,"], "devices: got ''"),
    "target twice": (
        ["--target", "cpu", "--target", "cpu"],
        "targets: got ['cpu', 'cpu'], expected each once",
    ),
    "memory": (["--device-memory", "lots"], "--device-memory: got 'lots', expected a size such as 80GB"),
    "width": (
        ["--dense-width", "dense=-1"],
        "--dense-width: got '-1', expected a whole number of at least 1",
    ),
    "width of superscripts": (["--dense-width", "dense=²"], "--dense-width: got '²'"),
    "arguments": (["--factory-args", "{"], "factory-args: not readable as JSON"),
    "arguments nested deeply": (["--factory-args", "[" * 50_000], "factory-args: not readable as JSON"),
    "arguments in a list": (["--factory-args", "[]"], "factory-args: got list"),
    "single file of two": (
        ["--single-file", "--target", "cpu", "--target", "cpu,cpu"],
        "single_file: got targets",
    ),
    "plan missing": (["--plan", "nowhere.json"], "plan: cannot read 'nowhere.json': FileNotFoundError"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_values_are_2_and_one_line(
    state: Path, arguments: list[str], message: str, capsys: Capture, tmp_path: Path
) -> None:
    assert message in fails(capsys, 2, state, *BARE, *arguments, "--out", tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not readable as JSON"),
        ("[]", "plan: got list, expected an object"),
        ('{"": []}', "expected an object"),
        (
            '{"": {"users": {"sharding_type": "diagonal", "shards": []}}}',
            "one of data_parallel, table_wise, column_wise, row_wise",
        ),
        ("[" * 100_000, "not readable as JSON"),
        ("9" * 10_000, "not readable as JSON"),
        ("\udcff", "plan 'plan.json': not readable as JSON"),
    ],
    ids=["truncated", "list", "list in it", "type", "deep", "long number", "bytes"],
)
def test_bad_plans_are_2(state: Path, tmp_path: Path, content: str, message: str, capsys: Capture) -> None:
    (tmp_path / "plan.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert message in fails(
        capsys, 2, state, *BARE, "--plan", tmp_path / "plan.json", "--out", tmp_path / "a"
    )


FAILURES: dict[str, tuple[Callable[[Path], list[str | Path]], str]] = {
    "no such file": (lambda p: [p / "x.pt"], "x.pt"),
    "no such file for a factory": (
        lambda p: [p / "x.pt", *BARE],
        "checkpoint: got 'x.pt', which does not exist",
    ),
    "a directory without a factory": (lambda p: [p], "a folder of state dicts (bare.pth) needs --factory"),
    "a file and a directory": (lambda p: [p / "bare.pth", p, *BARE], "which is a folder"),
    "a directory and a file": (lambda p: [p, p / "bare.pth", *BARE], "and 1 more, expected one directory"),
    "an unsafe pickle of many files": (
        lambda p: [p / "bare.pth", p / "bare.pth", "--unsafe-pickle"],
        "unsafe-pickle: got several files",
    ),
    "a state dict without a factory": (lambda p: [p / "bare.pth"], "checkpoint"),
    "factory nowhere": (
        lambda p: [p / "bare.pth", "--factory", "no.where:make"],
        "cannot import 'no.where:make'",
    ),
    "factory that raises": (
        lambda p: [p / "bare.pth", "--factory", "tests.support.models.factories:make_trouble"],
        "failed: LookupError: no such feature store",
    ),
    "factory of another model": (
        lambda p: [p / "bare.pth", "--factory", "tests.support.models.factories:make_dlrm"],
        "checkpoint: missing dense_arch.model._mlp.0._linear.bias",
    ),
    "unknown table": (
        lambda p: [p / "bare.pth", *BARE, "--table-dtype", "x=int4"],
        "got unknown tables ['x']",
    ),
    "parent is a file": (lambda p: [p / "bare.pth", *BARE, "--out", p / "bare.pth" / "a"], ""),
    "foreign directory": (
        lambda p: [p / "bare.pth", *BARE, "--force", "--out", p],
        "is no artifact; it is not replaced",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), FAILURES.values(), ids=FAILURES)
def test_failures_are_1_and_one_line(
    state: Path, arguments: Callable[[Path], list[str | Path]], message: str, capsys: Capture
) -> None:
    assert message in fails(capsys, 1, *arguments(state.parent))
    assert [p.name for p in state.parent.iterdir()] == ["bare.pth"]


def test_help_shows_every_option_and_an_example(capsys: Capture) -> None:
    assert run("--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in [
        "--out",
        "--name",
        "--force",
        "--single-file",
        "--json",
        "--dtype",
        "--table-dtype",
        "--id-policy",
        "--target",
        "--plan",
        "--device-memory",
        "--dense-dtype",
        "--dense-width",
        "--factory",
        "--factory-args",
        "--unsafe-pickle",
        "--samples",
    ]:
        assert option in text
    assert "examples:" in text
    assert "RUNS ANY CODE" in text


def test_it_runs_as_a_process(checkpoint: Path) -> None:
    command = [sys.executable, "-m", "export", str(checkpoint)]
    first = subprocess.run([*command, "--json"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (first.returncode, first.stderr) == (0, "")
    assert json.loads(first.stdout)["num_samples"] == 256
    second = run_python(*command[1:])
    assert (second.returncode, second.stdout) == (1, "")
    assert second.stderr.startswith("recsys-export: out: 'clicks.artifact' exists")
