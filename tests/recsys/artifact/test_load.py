"""Loading: what is read, what is shared, what a plain TorchScript program needs.

Shape letters: B batch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection
from recsys.artifact.batches.samples import random_batch
from recsys.artifact.load import load_artifact
from recsys.artifact.parts import ROWS_NAME, read_manifest
from tests.recsys.artifact.conftest import Ranker
from tests.recsys.artifact.damage import answers, same
from tests.support.helpers import bag

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
# Rows of 8 + 4 bytes: 12 MiB of them.
BIG_ROWS, BIG_TABLES = 350_000, 3

PLAIN = """
import sys
import torch
import fbgemm_gpu
model = torch.jit.load(sys.argv[1])
inputs = torch.load(sys.argv[2])
torch.save(model(*inputs), sys.argv[3])
ours = sorted(name for name in sys.modules if name.split('.')[0] in ('recsys', 'export', 'serve'))
assert not ours, ours
"""

# The stored answers of a program are compared, which reads rows.
READER = """
import json
import sys
from recsys.artifact.load import load_artifact
from tests.recsys.artifact.damage import answers

def rollup():
    lines = open('/proc/self/smaps_rollup').read().splitlines()[1:]
    return {line.split(':')[0]: int(line.split()[1]) * 1024 for line in lines}

def of_rows():
    found, mine = {}, False
    for line in open('/proc/self/smaps'):
        if '-' in line.split()[0] and not line.split()[0].endswith(':'):
            mine = line.rstrip().endswith('rows.bin')
        elif mine and line.split(':')[0] in ('Size', 'Rss', 'Pss', 'Private_Dirty', 'Private_Clean', 'Shared_Clean'):
            name = line.split(':')[0]
            found[name] = found.get(name, 0) + int(line.split()[1]) * 1024
    return found

before = rollup()
artifact = load_artifact(sys.argv[1], verify_checksums=sys.argv[2] == 'verify', scripted=True)
loaded = of_rows()
answers(artifact)
print(json.dumps({'before': before, 'after': rollup(), 'loaded': loaded, 'rows': of_rows()}), flush=True)
sys.stdin.readline()
print(json.dumps(of_rows()), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with many rows."""
    path = tmp_path_factory.mktemp("artifacts") / "big"
    tables = [bag(f"t{i}", BIG_ROWS, 8, [f"f{i}"]) for i in range(BIG_TABLES)]
    export_model(EmbeddingBagCollection(tables), path)
    return path


def test_a_single_file_needs_torch_and_fbgemm_only(pristine_file: Path, tmp_path: Path) -> None:
    artifact = load_artifact(pristine_file, scripted=True)
    inputs = random_batch(artifact.signature, 8, torch.Generator().manual_seed(0)).inputs()
    torch.save(inputs, tmp_path / "inputs")
    command = [sys.executable, "-W", "ignore", "-c", PLAIN]
    subprocess.run(
        [*command, str(pristine_file), str(tmp_path / "inputs"), str(tmp_path / "outputs")],
        check=True,
        cwd=tmp_path,
    )
    found: dict[str, Tensor] = torch.load(tmp_path / "outputs")
    assert same(found, artifact.forward(*inputs))


def test_a_single_file_predicts_what_the_directory_predicts(pristine: Path, pristine_file: Path) -> None:
    one, other = load_artifact(pristine), load_artifact(pristine_file)
    batch = random_batch(other.signature, 50, torch.Generator().manual_seed(3))
    assert same(one.forward(*batch.inputs()), other.forward(*batch.inputs()))
    assert other.target_name == "cpu"


def test_a_single_files_manifest_can_be_read_alone(pristine_file: Path) -> None:
    manifest = read_manifest(pristine_file)
    assert manifest.rows_path is None
    assert manifest.name == "ranker"
    assert [t.name for t in manifest.targets] == ["cpu"]


def test_the_first_target_of_this_machine_is_taken(pristine: Path) -> None:
    assert load_artifact(pristine).target_name == "cpu"
    assert load_artifact(pristine, target="cpu,cpu").target_name == "cpu,cpu"


def test_both_cpu_targets_predict_the_same(pristine: Path) -> None:
    one, two = load_artifact(pristine), load_artifact(pristine, target="cpu,cpu")
    assert same(answers(one), answers(two))


def test_rows_are_mapped_not_copied(pristine: Path) -> None:
    artifact = load_artifact(pristine, verify_checksums=False)
    maps = Path("/proc/self/maps").read_text()
    assert str(pristine / ROWS_NAME) in maps
    assert artifact.manifest.layout.num_bytes == (pristine / ROWS_NAME).stat().st_size


def test_loading_changes_no_byte(artifact: Path) -> None:
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in artifact.iterdir()}
    answers(load_artifact(artifact))
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in artifact.iterdir()} == before


def test_a_read_only_artifact_loads(artifact: Path) -> None:
    for file in artifact.iterdir():
        file.chmod(0o444)
    artifact.chmod(0o555)
    try:
        answers(load_artifact(artifact))
    finally:
        artifact.chmod(0o755)


def test_a_path_may_be_a_text(pristine: Path) -> None:
    assert same(answers(load_artifact(str(pristine))), answers(load_artifact(pristine)))


class Readers:
    """Processes that hold an artifact open."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, path: Path, mode: str) -> dict[str, dict[str, int]]:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", READER, str(path), mode],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        told: dict[str, dict[str, int]] = json.loads(process.stdout.readline())
        return told

    def again(self, i: int) -> dict[str, int]:
        process = self.processes[i]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        told: dict[str, int] = json.loads(process.stdout.readline())
        return told


@pytest.fixture
def readers() -> Iterator[Readers]:
    started = Readers()
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps")
def test_loading_without_checksums_reads_next_to_nothing(big: Path, readers: Readers) -> None:
    size = (big / ROWS_NAME).stat().st_size
    assert size > 12 * MIB
    told = readers.start(big, "skip")
    assert told["rows"]["Size"] >= size
    assert told["loaded"]["Rss"] < 0.1 * size
    verified = readers.start(big, "verify")
    assert verified["loaded"]["Rss"] > 0.99 * size


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps")
def test_two_processes_share_the_pages(big: Path, readers: Readers) -> None:
    size = (big / ROWS_NAME).stat().st_size
    told = [readers.start(big, "verify") for _ in range(2)]
    for i in range(2):
        rows = readers.again(i)
        assert rows["Rss"] > 0.99 * size
        assert rows["Private_Dirty"] == 0
        assert rows["Private_Clean"] < 0.05 * size
        assert rows["Pss"] < 0.6 * size
    before, after = told[1]["before"], told[1]["after"]
    private = sum(after[kind] - before[kind] for kind in ("Private_Dirty", "Private_Clean"))
    assert private < size / 2


def test_a_single_files_rows_are_private(pristine_file: Path) -> None:
    """The contrast: they are read into memory with the graph."""
    load_artifact(pristine_file)
    assert str(pristine_file) not in Path("/proc/self/maps").read_text()


def test_an_export_can_be_repeated(pristine: Path, tmp_path: Path) -> None:
    config = ExportConfig(name="ranker")
    export_model(Ranker(), tmp_path / "again", config)
    export_model(Ranker(), tmp_path / "once more", config)
    assert (tmp_path / "again" / ROWS_NAME).read_bytes() == (tmp_path / "once more" / ROWS_NAME).read_bytes()
    one, other = load_artifact(tmp_path / "again"), load_artifact(tmp_path / "once more")
    assert one.signature == other.signature
    assert same(answers(one), answers(other))
    assert set(answers(one)) == set(answers(load_artifact(pristine)))
