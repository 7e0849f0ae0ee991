"""Chains of deltas of the small model, and what it answers after each."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from export.delta.delta import DeltaConfig, export_delta
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from serve.client.packing import read_response
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest
from tests.support.serve.messages.cases import Sample, answer
from tests.support.serve.models import SmallModel

NUM_DELTAS = 3
Answers = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Chain:
    """Deltas made one after the other, and what the model says after each: ``answers[0]`` before any."""

    folder: Path
    sample: Sample
    answers: list[Answers]

    def fits(self, outputs: Answers) -> list[int]:
        """The numbers of deltas after which the model answers like this."""
        return [
            state
            for state, expected in enumerate(self.answers)
            if all(np.allclose(outputs[name], expected[name], rtol=1e-4, atol=1e-5) for name in expected)
        ]


def later(model: SmallModel, seed: int, *, with_dense: bool) -> SmallModel:
    """After more training of all tables, and of the dense layers too."""
    torch.manual_seed(seed)
    after = copy.deepcopy(model)
    with torch.no_grad():
        for tables in (after.plain, after.weighted):
            for parameter in tables.parameters():
                parameter.copy_(torch.randn_like(parameter))
        for parameter in after.over.parameters() if with_dense else ():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return after


def make_chain(exported: Exported, folder: Path, *, seed: int = 0, num_deltas: int = NUM_DELTAS) -> Chain:
    """Make ``0.delta``, ``1.delta`` and so on for an artifact of the small model; all but the first have dense weights.

    Args:
        exported: the artifact.
        folder: for the deltas.
        seed: of its model.
        num_deltas: how many.
    """
    sample = exported.sample(6, seed=5, max_ids=8)
    oracle, model = load_artifact(exported.path), SmallModel(seed).eval()
    answers, made = [answer(oracle, sample)], []
    for at in range(num_deltas):
        path, new = folder / f"{at}.delta", later(model, 10 * seed + at + 1, with_dense=at > 0)
        export_delta(model, new, path, DeltaConfig(artifact=exported.path, after=tuple(made)))
        apply(prepare(oracle.rows, path))
        answers.append(answer(oracle, sample))
        made.append(path)
        model = new
    assert len({one["score"].tobytes() for one in answers}) == num_deltas + 1
    return Chain(folder, sample, answers)


def answers_under_load(
    server: ServerUnderTest, chain: Chain, num_clients: int, take: Callable[[int], object]
) -> Counter[int]:
    """Let clients ask while the server takes the deltas, and count the answers of each state.

    Args:
        server: serves the artifact of the chain.
        chain: the deltas.
        num_clients: how many ask at a time.
        take: makes the server take a delta, by its number.
    """
    request, done = chain.sample.request().SerializeToString(), threading.Event()
    started = threading.Semaphore(0)

    def client(_: int) -> Counter[int]:
        call, seen = server.predict_bytes(), Counter[int]()
        while not done.is_set():
            outputs = read_response(wire.PredictResponse.FromString(call(request, timeout=120)))
            fits = chain.fits(outputs)
            assert len(fits) == 1, "rows of two states in one answer"
            seen[fits[0]] += 1
            started.release()
        return seen

    with ThreadPoolExecutor(num_clients) as pool:
        clients = [pool.submit(client, at) for at in range(num_clients)]
        try:
            for at in range(NUM_DELTAS):
                for _ in range(100):
                    assert started.acquire(timeout=60)
                take(at)
            for _ in range(200):
                assert started.acquire(timeout=60)
        finally:
            done.set()
        return sum((one.result(120) for one in clients), Counter[int]())
