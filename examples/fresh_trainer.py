r"""A trainer that learns from clicks as they arrive on Kafka, and publishes what it changes every few seconds.

    python examples/fresh_trainer.py model.pt model.artifact --clicks kafka://HOST:PORT/clicks \
        --publish kafka://HOST:PORT/deltas --every 2

A click is a JSON object: the model's features with their raw IDs, and ``click``, 0 or 1. ``examples/fresh.py`` runs
this beside servers that follow the deltas.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from confluent_kafka import Consumer
from torch import Tensor, nn
from torch.nn import functional

from recsys import DistributedModelParallel, KeyedJaggedTensor
from recsys.checkpoint import build_model, load_checkpoint
from recsys.inputs.schema import Schema
from recsys.optim import EmbOptimType, in_backward_optimizer_filter
from recsys.sharding.sharders import EmbeddingBagCollectionSharder
from recsys.train.stepping.ranks import find_ranks, one_rank_plan, process_group
from recsys.training import Publisher

_MOST_CLICKS = 512
_WAIT_S = 0.05
_FUSED = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.2}


@dataclass
class Work:
    """What the trainer did; ``stop`` ends it.

    Attributes:
        num_clicks: Clicks that it learned from.
        num_steps: Steps.
        loss: The mean loss of the last steps.
    """

    num_clicks: int = 0
    num_steps: int = 0
    loss: float = 0.0
    is_stopped: bool = field(default=False, repr=False)

    def stop(self, signal_number: int, frame: FrameType | None) -> None:
        """End after the present step, as a handler of signals."""
        del signal_number, frame
        self.is_stopped = True

    def learned(self, num_clicks: int, loss: float) -> None:
        """Note a step."""
        self.num_clicks += num_clicks
        self.num_steps += 1
        self.loss += 0.05 * (loss - self.loss) if self.num_steps > 1 else loss


def main(argv: Sequence[str] | None = None) -> int:
    """Train until SIGTERM."""
    args = _parser().parse_args(argv)
    work = Work()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, work.stop)
    torch.set_num_threads(1)
    ranks = find_ranks("cpu")
    with process_group(ranks):
        model = build_model(load_checkpoint(args.model))
        sharder = EmbeddingBagCollectionSharder(_FUSED)
        sharded = DistributedModelParallel(model, ranks.env(), ranks.device, one_rank_plan(model), [sharder])
        with Publisher(sharded, args.artifact, args.publish) as publisher:
            train(sharded, args, publisher, work)
            is_published = publisher.finish()
            print(json.dumps({**vars(work), "published": is_published, **vars(publisher.status)}), flush=True)
    return 0


def train(
    model: DistributedModelParallel, args: argparse.Namespace, publisher: Publisher, work: Work
) -> None:
    """Learn from clicks until somebody ends it."""
    inputs = model.module.inputs
    assert isinstance(inputs, Schema)
    names = inputs.feature_names
    dense = [parameter for _, parameter in in_backward_optimizer_filter(model.named_parameters())]
    optimizer = torch.optim.Adam(dense, lr=0.002)
    model.train()
    consumer = subscribed(args.clicks)
    publisher.finish()  # all rows are compared with what the servers hold, once
    print(json.dumps({"event": "ready"}), flush=True)
    due_s = 0.0
    try:
        while not work.is_stopped:
            clicks = arrived(consumer)
            if clicks:
                step(model, optimizer, *batch_of(clicks, names), work=work)
            is_due = time.monotonic() >= due_s
            if publisher.publish(is_due=is_due):
                due_s = time.monotonic() + args.every
    finally:
        consumer.close()


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    features: KeyedJaggedTensor,
    labels: Tensor,
    work: Work,
) -> None:
    """Learn from a batch; rows of tables are updated in the backward pass."""
    (score,) = model(features).values()
    loss = functional.binary_cross_entropy(score, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    work.learned(len(labels), float(loss.detach()))


def batch_of(clicks: Sequence[Mapping[str, Any]], names: Sequence[str]) -> tuple[KeyedJaggedTensor, Tensor]:
    """Return one ID for each feature of B clicks, and their labels ``[B]``."""
    ids = torch.tensor([click[name] for name in names for click in clicks], dtype=torch.int64)
    labels = torch.tensor([float(click["click"]) for click in clicks])
    return KeyedJaggedTensor(list(names), ids, lengths=torch.ones(len(ids), dtype=torch.int64)), labels


def subscribed(address: str) -> Consumer:
    """Return a consumer of a topic, from its beginning."""
    servers, _, topic = address.removeprefix("kafka://").partition("/")
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "trainer",
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": True,
        }
    )
    consumer.subscribe([topic])
    return consumer


def arrived(consumer: Consumer) -> list[dict[str, Any]]:
    """Return the clicks that are there, waiting a little for the first."""
    messages = consumer.consume(_MOST_CLICKS, _WAIT_S)
    return [json.loads(one.value() or b"{}") for one in messages if one.error() is None]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="the checkpoint to begin with")
    parser.add_argument("artifact", type=Path, help="what servers have loaded, exported from it")
    parser.add_argument("--clicks", required=True, metavar="ADDRESS", help="the topic of clicks")
    parser.add_argument("--publish", required=True, metavar="ADDRESS", help="where deltas go")
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between two deltas")
    return parser


if __name__ == "__main__":
    sys.exit(main())
