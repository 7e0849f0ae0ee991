"""recsys-train from the command line to a checkpoint that predicts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recsys import KeyedJaggedTensor
from recsys.checkpoint import build_model, load_checkpoint
from recsys.checkpoint.touched import weights_digest
from recsys.configs import BaseEmbeddingConfig
from recsys.data.cli import main as data_main
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.plan.sharding_types import table_wise
from recsys.train.commands import train as cli
from recsys.train.commands.train import main

_SMALL = ["--limit-rows", "4000", "--embedding-dim", "4", "--dense-layers", "8", "--over-layers", "8,4"]


def test_from_the_command_line_to_a_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.pt"
    assert main(["--data", "synthetic", "--out", str(out), "--epochs", "2", *_SMALL]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "synthetic: 3600 training and 400 held-out rows, 3 dense features, 4 tables"
    assert lines[1].startswith("epoch 1/2: train loss 0.")
    assert lines[2].startswith("epoch 2/2: train loss 0.")
    assert lines[3].startswith("kept epoch 2 of 2: its held-out loss is the lowest, 0.")
    assert "planted model" in lines[5]
    assert lines[6] == f"saved {out}"
    assert printed.err == ""
    checkpoint = load_checkpoint(out)
    assert checkpoint.factory == "recsys.models.click:build_dlrm"
    assert checkpoint.arguments["over_arch_layer_sizes"] == [8, 4, 1]
    assert checkpoint.info["feature_names"] == ["user", "item", "recent_items", "category", "hour"]
    assert checkpoint.info["dense_names"] == ["price", "position", "freshness"]
    assert f"AUC {checkpoint.info['metrics']['auc']:.4f}" in lines[4]
    keys = ["hour", "user", "item", "category", "recent_items"]
    kjt = KeyedJaggedTensor(keys=keys, values=[5, 17, 3, 9, 1, 2, 3], lengths=[1, 1, 1, 1, 3])
    with torch.no_grad():
        score = build_model(checkpoint)(torch.zeros(1, 3), kjt)["score"]
    assert score.shape == (1,)
    assert 0 < score.item() < 1


def test_a_plan_for_more_ranks_is_found_before_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = BaseEmbeddingConfig(name="user", num_embeddings=10, embedding_dim=4)
    plan = ShardingPlan(plan={"model": {"user": table_wise(table, 2)}})
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    argv = ["--data", "synthetic", "--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "m.pt")]
    assert main([*argv, *_SMALL]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "recsys-train: --plan: got a plan for 3 ranks, expected one for 1: start 3 ranks (torchrun --nproc-per-node 3 "
        "-m recsys.train ...) or make a plan for 1 (recsys-plan --world-size 1)\n"
    )


def test_json_is_one_object_that_agrees_with_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model.pt"
    assert main(["--data", "synthetic", "--out", str(out), "--json", "--seed", "3", *_SMALL]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert printed.err == ""
    assert result["out"] == str(out)
    assert [epoch["number"] for epoch in result["epochs"]] == [1, 2]
    info = load_checkpoint(out).info
    assert info.pop("example_rows")["num_rows"] == 256
    assert info.pop("data_sketch")["num_rows"] == 400
    assert info.pop("weights") == weights_digest(load_checkpoint(out).state_dict)
    assert info == {key: result[key] for key in info}
    assert result["metrics"]["auc"] == result["epochs"][result["epoch"] - 1]["auc"]
    assert result["train"]["seed"] == 3
    assert result["reference"]["name"] == "planted"


def test_the_usage_says_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    usage, *_ = capsys.readouterr().out.splitlines()
    assert usage == "usage: recsys-train --data PATH (--out FILE | --checkpoint-dir DIR | both) [options]"


def test_the_columns_of_a_table_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "clicks.csv"
    data.write_text("click,price,shop\n" + "".join(f"{i % 2},{i}.5,s{i % 7}\n" for i in range(60)))
    assert main(["--data", str(data), "--out", str(tmp_path / "model.pt"), *_SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "table: 54 training and 6 held-out rows, 1 dense feature, 1 table",
        "  label click (1, 50.0%); 1 dense: price; 1 table: shop",
        f"  recsys-data inspect {data} shows why",
    ]


def test_columns_that_look_like_numbers_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, options = tmp_path / "clicks.csv", ["--hash-rows", "7", *_SMALL]
    names = [f"price{k}" for k in range(9)]
    lines = [
        ",".join([str((i // 20 + i) % 2), f"s{i % 20}", *[f'"{i % 20},{i % 5}5"'] * 9]) for i in range(80)
    ]
    data.write_text("\n".join([",".join(["click", "shop", *names]), *lines]))
    assert main(["--data", str(data), "--out", str(tmp_path / "model.pt"), *options]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if ": reading " not in line]
    assert said[0] == (
        "recsys-train: column 'price0': '0,05' is not a number: its comma may separate thousands or decimals; the "
        'model takes the values as texts: write numbers as 1234.5 or set decimal = "," in the schema, to have them '
        "learned as such"
    )
    assert len(said) == 7
    assert said[-1] == "recsys-train: 13 more such lines: --json gives all"
    assert main(["--data", str(data), "--out", str(tmp_path / "model.pt"), "--json", *options]) == 0
    notices = json.loads(capsys.readouterr().out)["notices"]
    assert [notice.split(":")[0] for notice in notices[:9]] == [f"column {name!r}" for name in names]
    assert "shop: 20 IDs read" in "\n".join(notices)
    assert data_main(["inspect", str(data), "--hash-rows", "7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == notices


def test_the_same_command_gives_the_same_tensors(tmp_path: Path) -> None:
    states = []
    for name in ("a.pt", "b.pt"):
        main(["--data", "synthetic", "--out", str(tmp_path / name), "--json", "--epochs", "1", *_SMALL])
        states.append(load_checkpoint(tmp_path / name).state_dict)
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def _criteo_line(label: int) -> str:
    return "\t".join([str(label), *["1"] * 13, *["0000000a"] * 26])


def test_criteo_without_clicks_in_the_held_out_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "train.txt", tmp_path / "model.pt"
    data.write_text("\n".join(_criteo_line(label) for label in [0, 1, 0, 1, 0, 1, 0, 1, 0, 0]))
    argv = ["--data", "criteo", "--path", str(data), "--out", str(out), "--hash-rows", "16"]
    assert main(argv) == 0
    printed = capsys.readouterr()
    assert "held-out AUC undefined" in printed.out
    said = "label 'label': it is 0 in all 1 rows that were measured, so that AUC and NE are undefined"
    assert said in printed.err
    assert main([*argv, "--json"]) == 0
    (notice,) = json.loads(capsys.readouterr().out)["notices"]
    assert notice.startswith(said)
    checkpoint = load_checkpoint(out)
    assert checkpoint.info["metrics"]["auc"] is None
    assert checkpoint.arguments["tables"][25] == {
        "name": "C26",
        "num_embeddings": 16,
        "embedding_dim": 16,
        "feature_names": ["C26"],
        "pooling": "SUM",
    }


def test_without_a_place_for_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", "synthetic"]) == 2
    assert "--out: missing, expected the file to write, or --checkpoint-dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        pytest.param(["--data", "movielens"], "path: got none", id="no-path"),
        pytest.param(["--data", "synthetic", "--path", "x"], "path: got 'x', expected none", id="path"),
        pytest.param(["--data", "criteo", "--path", "nowhere.txt"], "nowhere.txt: no such file", id="file"),
        pytest.param(["--data", "synthetic", "--limit-rows", "1"], "limit_rows: got 1", id="one-row"),
        pytest.param(
            ["--data", "synthetic", "--learning-rate", "-1"], "--learning-rate: got '-1'", id="rate"
        ),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], text: str
) -> None:
    try:
        status: object = main([*argv, "--out", str(tmp_path / "model.pt")])
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert printed.err.startswith("recsys-train: ")
    assert text in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_malformed_line_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "train.txt"
    data.write_text("\n".join([_criteo_line(0), "broken", _criteo_line(1)]))
    assert main(["--data", "criteo", "--path", str(data), "--out", str(tmp_path / "m.pt"), "--json"]) == 2
    assert capsys.readouterr().err.startswith("recsys-train: train.txt, line 2: got 1 fields, expected 40")
    assert not (tmp_path / "m.pt").exists()


def test_parquet_with_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"y": [i % 2 for i in range(40)], "x": [i / 7 for i in range(40)], "item": list(range(40))}
    pq.write_table(pa.table(columns), tmp_path / "clicks.parquet")
    schema = {"label": "y", "dense": ["x"], "tables": [{"name": "item", "features": ["item"], "rows": 40}]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    argv = ["--data", "parquet", "--path", str(tmp_path / "clicks.parquet"), "--out", str(tmp_path / "m.pt")]
    assert main([*argv, "--schema", str(tmp_path / "schema.json"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["num_train_rows"], result["num_held_out_rows"]) == (36, 4)
    assert (result["dense_names"], result["feature_names"]) == (["x"], ["item"])
    assert load_checkpoint(tmp_path / "m.pt").arguments["tables"][0]["num_embeddings"] == 40


@pytest.mark.parametrize("out", [".", "nowhere/model.pt"], ids=["folder", "missing-folder"])
def test_a_result_that_cannot_be_written_is_found_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setattr(cli, "open_dataset", lambda _: pytest.fail("training was prepared"))
    assert main(["--data", "synthetic", "--out", str(tmp_path / out)]) == 2
    assert "--out: got" in capsys.readouterr().err


def test_divergence_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--learning-rate", "1e30", "--row-learning-rate", "1e30"]
    assert main(["--data", "synthetic", "--out", str(tmp_path / "m.pt"), "--json", *rates, *_SMALL]) == 1
    assert "recsys-train: failed: the loss became" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_divergence_is_seen_before_a_checkpoint_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = ["--learning-rate", "1e30", "--row-learning-rate", "1e30"]
    run = ["--checkpoint-dir", str(tmp_path / "run"), "--checkpoint-every", "3"]
    assert main(["--data", "synthetic", *run, "--json", *rates, *_SMALL]) == 1
    assert "recsys-train: failed: the loss became" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["lock", "run.toml"]


@pytest.mark.parametrize("option", ["--resume", "--checkpoint-every"])
def test_options_of_checkpoints_need_their_folder(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [option] if option == "--resume" else [option, "5"]
    assert main(["--data", "synthetic", "--out", "m.pt", *words]) == 2
    assert f"{option}: got it without --checkpoint-dir" in capsys.readouterr().err


def test_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    main(["--data", "movielens", "--out", str(tmp_path / "m.pt"), "--threads", str(before + 1)])
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "argv",
    [
        ["--data", "synthetic", "--out", "m.pt", "--epochs", "0"],
        ["--data", "synthetic", "--out", "m.pt", "--over-layers", "8,x"],
    ],
    ids=["epochs", "layers"],
)
def test_bad_usage_is_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(argv)
    assert exit_info.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"recsys-train: {argv[4]}: got {argv[5]!r}, expected ")
    assert printed.count("\n") == 1


def test_data_that_is_no_path_and_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", "syntetic", "--out", "m.pt"]) == 2
    assert "expected a file or folder that exists, or one of" in (text := capsys.readouterr().err)
    assert "did you mean synthetic?" in text
    assert main(["--data", ".", "--path", "x", "--out", "m.pt"]) == 2
    assert "--data takes the path of a table" in capsys.readouterr().err


def test_help_as_a_process() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "recsys.train", "--help"], capture_output=True, text=True, check=True
    )
    assert "examples:\n  recsys-train --data clicks.csv --out model.pt" in result.stdout


def test_a_run_goes_on_with_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is inferred of the table today: an earlier release inferred another one."""
    lines = [f"{i % 2},{(i % 60) << 16}" for i in range(600)]
    (tmp_path / "clicks.csv").write_text("\n".join(["click,ad_id", *lines]))
    table = '[[tables]]\nname = "ad_id"\nfeatures = ["ad_id"]\nrows = 50\nids = "hash"\n'
    (tmp_path / "schema.toml").write_text(f'labels = [{{name = "click"}}]\n{table}')
    argv = ["--data", str(tmp_path / "clicks.csv"), "--checkpoint-dir", str(tmp_path / "run"), "--json"]
    argv += [
        "--embedding-dim",
        "4",
        "--over-layers",
        "4",
        "--batch-size",
        "64",
        "--out",
        str(tmp_path / "m.pt"),
    ]
    assert main([*argv, "--epochs", "1", "--schema", str(tmp_path / "schema.toml")]) == 0
    before = load_checkpoint(tmp_path / "m.pt").arguments
    assert main([*argv, "--epochs", "2", "--resume"]) == 0
    assert load_checkpoint(tmp_path / "m.pt").arguments == before
    capsys.readouterr()
    assert main([*argv, "--epochs", "3", "--resume", "--label", "click"]) == 2
    assert "checkpoint: data: got other data" in capsys.readouterr().err
