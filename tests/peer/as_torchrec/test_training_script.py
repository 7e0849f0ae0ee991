"""One training script, with TorchRec itself and with this library in its place: the losses are the same.

The script is written as TorchRec's users write theirs. It runs unchanged on one rank and on two, after a call of
``install()``, and with its imports rewritten.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile

import pytest
import torch.distributed as dist

from recsys.as_torchrec.rewrite.files import rewrite_text
from recsys.as_torchrec.table import load_table
from tests.peer import torchrec_peer
from tests.support.fork_server import PROGRAMS, TORCHREC, Forked

pytestmark = [pytest.mark.peer, pytest.mark.slow]
assert torchrec_peer.torchrec
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).parent / "scripts" / "train_dlrm.py"
TIMEOUT_S = 240
_TOLERANCE = 1e-5


def losses(
    folder: Path, world_size: int, *command: str, imported: tuple[str, ...] = PROGRAMS
) -> list[list[float]]:
    """Run a script on ranks of its own; return each rank's losses."""
    folder.mkdir()
    # The ranks are clients of a store on a port that the system chose, as torchrun's are.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set_timeout(timedelta(seconds=TIMEOUT_S))
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    with ExitStack() as stack:
        output = stack.enter_context(TemporaryFile("w+"))
        ranks = [
            stack.enter_context(
                Forked(
                    [*command, "--out", str(folder)],
                    cwd=ROOT,
                    environment=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    streams=(output.fileno(), output.fileno()),
                    imported=imported,
                )
            )
            for rank in range(world_size)
        ]
        for rank in ranks:
            stack.callback(rank.kill)
        codes = [rank.wait(TIMEOUT_S) for rank in ranks]
        output.seek(0)
        assert codes == [0] * world_size, output.read()[-4000:]
    return [json.loads((folder / f"losses_{rank}.json").read_text()) for rank in range(world_size)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[list[float]]]:
    """The losses of TorchRec itself, by the number of ranks."""
    folder = tmp_path_factory.mktemp("torchrec")
    return {
        world_size: losses(folder / str(world_size), world_size, str(SCRIPT), imported=TORCHREC)
        for world_size in (1, 2)
    }


def with_install(folder: Path) -> Path:
    path = folder / "installed.py"
    path.write_text("import recsys.as_torchrec\n\nrecsys.as_torchrec.install()\n" + SCRIPT.read_text())
    return path


def with_rewritten_imports(folder: Path) -> Path:
    path = folder / "rewritten.py"
    after, by_hand = rewrite_text(SCRIPT.read_text(), load_table())
    assert not by_hand
    assert "import torchrec" not in after
    assert "from torchrec" not in after
    path.write_text(after)
    return path


@pytest.mark.parametrize(("way", "world_size"), [("run", 1), ("run", 2), ("install", 1), ("rewrite", 2)])
def test_the_losses_are_torchrecs(
    way: str, world_size: int, tmp_path: Path, expected: dict[int, list[list[float]]]
) -> None:
    commands = {
        "run": lambda: ("-m", "recsys.as_torchrec", str(SCRIPT)),
        "install": lambda: (str(with_install(tmp_path)),),
        "rewrite": lambda: (str(with_rewritten_imports(tmp_path)),),
    }
    got = losses(tmp_path / "out", world_size, *commands[way]())
    for ours, theirs in zip(got, expected[world_size], strict=True):
        assert ours == pytest.approx(theirs, abs=_TOLERANCE)
        assert len(ours) == 6


def test_the_weights_matter(expected: dict[int, list[list[float]]]) -> None:
    """The losses would show if a step were left out: they differ from those of other ranks, and are no constants."""
    (alone,), pair = expected[1], expected[2]
    assert len(set(alone)) == len(alone)
    assert abs(alone[1] - pair[0][1]) > 100 * _TOLERANCE
