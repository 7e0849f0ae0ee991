"""Clients in Go, Java and JavaScript, made of ``protos/`` by each language's own generators, against a live server.

Each program reads requests line by line (``rows N``, ``dense NAME NUMBERS``, ``ids NAME LENGTHS VALUES WEIGHTS``,
``send``) and prints each answer as JSON. ``packages.sh`` installs what builds them; ``make languages`` runs it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest
from tests.support.serve.messages.cases import Sample

pytestmark = [pytest.mark.engine, pytest.mark.slow]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PROTOS = ROOT / "protos"
PREDICT = "recsys/v1/predict.proto"
JARS = Path("/usr/share/java")
GO_SOURCES = Path("/usr/share/gocode")
NODE_MODULES = ROOT / "build" / "languages" / "node_modules"
# The versions of grpc-java, and of what it needs.
JAR_PATTERNS = (
    "grpc-*.jar",
    "guava.jar",
    "protobuf.jar",
    "netty-*.jar",
    "perfmark*.jar",
    "gson.jar",
    "geronimo-annotation*.jar",
)


def ran(command: Sequence[str | Path], **options: Any) -> str:
    """Run a program to its end; returns what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, **options)
    assert done.returncode == 0, f"{command[0]}: {done.stdout}\n{done.stderr}"
    return done.stdout


def needs(language: str, *found: Path | str | None) -> None:
    """Skip where something is missing."""
    if not all(one is not None and Path(one).exists() for one in found):
        pytest.skip(f"what builds the {language} client is missing: make languages installs it")


def go_client(folder: Path) -> list[str]:
    """Build the client in Go; returns its command."""
    go, protoc = shutil.which("go"), shutil.which("protoc")
    needs("Go", go, protoc, shutil.which("protoc-gen-go"), shutil.which("protoc-gen-go-grpc"), GO_SOURCES)
    source = folder / "src"
    source.mkdir()
    ran(
        ["protoc", f"--proto_path={PROTOS}", f"--go_out={source}", f"--go-grpc_out={source}", PREDICT],
    )
    environment = {**os.environ, "GO111MODULE": "off", "GOPATH": f"{folder}:{GO_SOURCES}", "GOFLAGS": ""}
    ran(["go", "build", "-o", folder / "client", HERE / "go" / "main.go"], env=environment)
    return [str(folder / "client")]


def java_client(folder: Path) -> list[str]:
    """Build the client in Java; returns its command."""
    plugin = shutil.which("grpc_java_plugin")
    needs("Java", shutil.which("javac"), shutil.which("protoc"), plugin, JARS / "grpc-netty.jar")
    ran(
        [
            "protoc",
            f"--plugin=protoc-gen-grpc-java={plugin}",
            f"--proto_path={PROTOS}",
            f"--java_out={folder}",
            f"--grpc-java_out={folder}",
            PREDICT,
        ]
    )
    jars = [str(path) for pattern in JAR_PATTERNS for path in sorted(JARS.glob(pattern))]
    path = ":".join([*jars, str(folder)])
    sources = [*folder.rglob("*.java"), HERE / "java" / "LanguageClient.java"]
    ran(["javac", "-nowarn", "-cp", path, "-d", str(folder), *map(str, sources)])
    return ["java", "-cp", path, "LanguageClient"]


def node_client(folder: Path) -> list[str]:
    """Return the command of the client for Node.js, which is not compiled."""
    node = shutil.which("node")
    needs("Node.js", node, NODE_MODULES / "@grpc" / "grpc-js")
    shutil.copy(HERE / "node" / "client.js", folder)
    (folder / "node_modules").symlink_to(NODE_MODULES)
    return ["node", str(folder / "client.js")]


LANGUAGES = {"go": go_client, "java": java_client, "node": node_client}


@pytest.fixture(scope="module", params=LANGUAGES)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A client's command."""
    return LANGUAGES[request.param](tmp_path_factory.mktemp(request.param))


def numbers(values: Sequence[float]) -> str:
    """Numbers as one word."""
    return ",".join(map(repr, values)) or "-"


def lines(sample: Sample) -> list[str]:
    """A request as the programs read it."""
    found = [f"rows {sample.num_rows}"]
    for name, rows in sample.dense.items():
        found.append(f"dense {name} {numbers(list(chain(*rows)))}")
    for name, bags in sample.sparse.items():
        weights = numbers(list(chain(*sample.weights.get(name, []))))
        found.append(
            f"ids {name} {numbers([len(bag) for bag in bags])} {numbers(list(chain(*bags)))} {weights}"
        )
    return [*found, "send"]


def test_clients_in_other_languages(client: list[str], server: ServerUnderTest, small: Exported) -> None:
    samples = [small.sample(num_rows, seed=num_rows) for num_rows in (1, 3, 0, 20)]
    wrong = small.sample(2)
    del wrong.dense["price"]
    asked = [line for sample in (*samples, wrong) for line in lines(sample)]
    is_node = client[0] == "node"
    command = [*client, server.address, *([str(PROTOS)] if is_node else [])]
    *answers, refusal = map(json.loads, ran(command, input="\n".join(asked) + "\n").splitlines())
    for sample, found in zip(samples, answers, strict=True):
        expected = small.answer(sample)
        assert [*found["outputs"]] == [*expected]
        for name, want in expected.items():
            got = np.array(found["outputs"][name], np.float32).reshape(want.shape)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    assert refusal["code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "price" in refusal["message"]


@pytest.mark.parametrize(
    "protocol", sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
)
def test_every_protocol_names_packages(protocol: str) -> None:
    text = (PROTOS / protocol).read_text()
    options = ("go_package", "java_package", "java_multiple_files", "csharp_namespace")
    assert all(f"option {name} = " in text for name in options)
