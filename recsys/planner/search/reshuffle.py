"""Local search: redistribution of the blocks of the worst rank and of a few others among these ranks.

Shape letters: W world size.

If memory is scarce, a redistribution may be possible where no exchange of two or three blocks is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from recsys.planner.search.partitioners import Placement

_NUM_DEALS = 12
_MOST_OTHERS = 5
_LEAST_GAIN = 1e-9
_MOST_ROUNDS_IN_VAIN = 40


@dataclass(frozen=True)
class _Card:
    table: int
    block: int
    cost_us: float
    hbm_bytes: int
    ddr_bytes: int
    rank: int


def reshuffle(placement: Placement, rng: random.Random, num_rounds: int, aim_us: float) -> None:
    """Redistribute tables, round by round, until the worst rank costs at most the aim.

    Only tables that are whole on a single rank are redistributed.
    """
    hands: list[list[_Card]] = [[] for _ in range(placement.capacity.world_size)]
    for table, option in enumerate(placement.options):
        if option is not None and option.span == 1 and len(option.blocks) == 1:
            block, rank = option.blocks[0], placement.slots[table][0]
            hands[rank].append(_Card(table, 0, block.total_us, block.hbm_bytes, block.ddr_bytes, rank))
    in_vain = 0
    for _ in range(num_rounds):
        if placement.cost_us <= aim_us or in_vain == _MOST_ROUNDS_IN_VAIN:
            return
        in_vain = 0 if _one_round(placement, hands, rng) else in_vain + 1


def _one_round(placement: Placement, hands: list[list[_Card]], rng: random.Random) -> bool:
    """Redistribute once; return whether the worst rank improved."""
    worst = int(placement.loads_us.argmax())
    others = [rank for rank in range(len(hands)) if rank != worst]
    ranks = [worst, *rng.sample(others, min(len(others), rng.randint(1, _MOST_OTHERS)))]
    cards = [card for rank in ranks for card in hands[rank]]
    best_us, best = float(placement.loads_us[worst]) * (1 - _LEAST_GAIN), None
    for _ in range(_NUM_DEALS):
        dealt = _deal(placement, ranks, cards, best_us, rng)
        if dealt is not None:
            best_us, best = dealt
    if best is None:
        return False
    for card, rank in zip(cards, best, strict=True):
        if rank != card.rank:
            placement.move(card.table, card.block, rank)
    new_hands: dict[int, list[_Card]] = {rank: [] for rank in ranks}
    for card, rank in zip(cards, best, strict=True):
        new_hands[rank].append(
            _Card(card.table, card.block, card.cost_us, card.hbm_bytes, card.ddr_bytes, rank)
        )
    for rank, hand in new_hands.items():
        hands[rank] = hand
    return True


def _deal(
    placement: Placement, ranks: list[int], cards: list[_Card], below_us: float, rng: random.Random
) -> tuple[float, list[int]] | None:
    """Return one random distribution: heavy cards first, each to the rank that it fills least."""
    loads = {rank: float(placement.loads_us[rank]) for rank in ranks}
    hbm = {rank: float(placement.free_hbm[rank]) for rank in ranks}
    ddr = {rank: float(placement.free_ddr[rank]) for rank in ranks}
    for card in cards:
        loads[card.rank] -= card.cost_us
        hbm[card.rank] += card.hbm_bytes
        ddr[card.rank] += card.ddr_bytes
    capacity = placement.capacity
    most_hbm, most_ddr = max(capacity.hbm_bytes, 1), max(capacity.ddr_bytes, 1)
    by_memory = rng.random()
    noise = rng.choice((0.0, 0.1, 0.4))
    weights = [
        (1 - by_memory) * card.cost_us / below_us
        + by_memory * max(card.hbm_bytes / most_hbm, card.ddr_bytes / most_ddr)
        for card in cards
    ]
    order = sorted(range(len(cards)), key=lambda i: -weights[i] * (1 + noise * rng.random()))
    dealt = [0] * len(cards)
    for i in order:
        card = cards[i]
        best_rank, best_score = -1, float("inf")
        for rank in ranks:
            load = loads[rank] + card.cost_us
            if load >= below_us or hbm[rank] < card.hbm_bytes or ddr[rank] < card.ddr_bytes:
                continue
            used = max(1 - hbm[rank] / most_hbm, 1 - ddr[rank] / most_ddr)
            score = (1 - by_memory) * load / below_us + by_memory * used
            if score < best_score:
                best_rank, best_score = rank, score
        if best_rank < 0:
            return None
        dealt[i] = best_rank
        loads[best_rank] += card.cost_us
        hbm[best_rank] -= card.hbm_bytes
        ddr[best_rank] -= card.ddr_bytes
    return max(loads.values()), dealt
