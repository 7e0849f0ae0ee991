"""A training that publishes until it is told to stop, and goes on from its last checkpoint when it was killed.

``python -m tests.support.children.publishing FOLDER DESTINATION``: the folder holds ``artifact``. It gets
``publisher.pid``, the process that publishes, and ``fresh``, an export of the model at the end, which begins when there
is a file ``stop``. It does not train while there is a file ``pause``.
"""

from __future__ import annotations

import copy
import sys
import time
from pathlib import Path

import torch

from export.pipeline import export_model
from recsys.base.files import replacing
from recsys.training import Publisher, publisher_process
from tests.support.models.managed import Managed, train_managed

_STEPS_PER_CHECKPOINT = 20
# So that steps leave some time to others.
_PAUSE_S = 0.005


def main() -> None:
    """Train and publish."""
    folder, destination = Path(sys.argv[1]), sys.argv[2]
    publisher_process._RESTART_S = 0.2
    model = Managed().train()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    step, checkpoint = 0, folder / "checkpoint.pt"
    if checkpoint.exists():
        step, weights, moments = torch.load(checkpoint)
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    with Publisher(model, folder / "artifact", destination, optimizer=optimizer, log=_say) as publisher:
        while not (folder / "stop").exists():
            while (folder / "pause").exists():
                time.sleep(_PAUSE_S)
            train_managed(model, optimizer, step)
            step += 1
            publisher.publish()
            assert publisher._process is not None
            assert publisher._process._process is not None
            with replacing(folder / "publisher.pid") as path:
                path.write_text(str(publisher._process._process.pid))
            if step % _STEPS_PER_CHECKPOINT == 0:
                with replacing(checkpoint) as path:
                    torch.save((step, model.state_dict(), optimizer.state_dict()), path)
            time.sleep(_PAUSE_S)
        assert publisher.finish(), publisher.status
    export_model(copy.deepcopy(model).eval(), folder / "fresh")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
