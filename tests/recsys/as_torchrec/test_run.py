"""Scripts and modules that are run with the hook, and the processes that they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json, multiprocessing, subprocess, sys
import beside
from torchrec.version import __version__
import torchrec.sparse

def work(queue):
    queue.put([__name__, torchrec.sparse.__name__, __version__, sys.argv[1:]])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    code = "import torchrec.optim; print(type(torchrec.optim).__module__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    print(json.dumps([sys.argv[1:], beside.NAME, queue.get(timeout=60), done.stdout]))
    child.join()
    sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    return tmp_path


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "recsys.as_torchrec", *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("way", ["script", "module"])
def test_a_script_and_all_that_it_starts_get_the_names(folder: Path, way: str, method: str) -> None:
    words = [method, "--names", "-m"]
    done = run(folder, "script.py", *words) if way == "script" else run(folder, "-m", "script", *words)
    assert done.returncode == 3, done.stderr
    args, beside, child, other = json.loads(done.stdout)
    assert args == words
    assert beside == "beside"
    assert child == ["__mp_main__", "torchrec.sparse", "1.8.0", words]
    assert other == "recsys.as_torchrec.hook\n"


def test_a_script_finds_what_lies_beside_it_and_not_what_lies_here(folder: Path) -> None:
    script = folder / "below" / "script.py"
    script.parent.mkdir()
    script.write_text("import beside\n")
    done = run(folder, str(script))
    assert done.returncode == 1
    assert "No module named 'beside'" in done.stderr


def test_a_name_that_is_left_out_ends_the_script_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("from torchrec import EmbeddingBagColection\n")
    done = run(tmp_path, "script.py")
    assert done.returncode == 1
    assert "did you mean EmbeddingBagCollection" in done.stderr


def test_this_package_in_the_current_folder_is_found_by_children(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import torchrec.sparse'], check=True, cwd='/')\n"
    )
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "recsys").symlink_to(ROOT / "recsys")
    done = subprocess.run(
        [sys.executable, "-m", "recsys.as_torchrec", str(tmp_path / "script.py")],
        cwd=tmp_path / "here",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
