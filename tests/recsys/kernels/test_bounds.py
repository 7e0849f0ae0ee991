"""No ID reaches memory that is not its table's, whatever the mode, the policy, or the lengths say."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.inputs.signature import IdPolicy
from recsys.kernels.bounds import INT64_MAX, BoundsCheckMode, IdCheck, IdRange, StructureCheck
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.sharding_types import row_wise
from recsys.sharding.sharded import ShardedOptions
from tests.cases.rows_of_ids import row_of
from tests.support.helpers import bag, kjt_of, outputs_of, scripted, sequence

INT64_MIN = -(2**63)
ROWS = 5
BAD_IDS = [ROWS, ROWS + 120, -1, -2, 2**31, 2**32, 2**62, INT64_MAX, INT64_MIN, INT64_MIN + 1, -INT64_MAX]
TABLES = [bag("t", ROWS, 8, ["a"]), bag("u", 9, 8, ["b"], "MEAN")]


def quantized(
    mode: BoundsCheckMode = BoundsCheckMode.FATAL, **policies: IdPolicy
) -> QuantEmbeddingBagCollection:
    torch.manual_seed(0)
    options = ShardedOptions(bounds_check_mode=mode, id_policies=policies)
    return QuantEmbeddingBagCollection.from_float(EmbeddingBagCollection(TABLES), options=options)


def batch(bad: int) -> KeyedJaggedTensor:
    return kjt_of({"a": [[1, 4], [0, bad]], "b": [[8], [3]]})


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]], ids=["in order", "out of order"])
@pytest.mark.parametrize("bad", BAD_IDS)
class TestModes:
    def test_fatal_names_feature_id_and_rows(self, bad: int, order: list[str]) -> None:
        features = batch(bad).permute([["a", "b"].index(key) for key in order])
        before = features.values().clone()
        with pytest.raises(
            ValueError, match=rf"feature 'a' got ID {bad} at its position 3, expected 0 <= ID < {ROWS}"
        ):
            quantized()(features)
        assert torch.equal(features.values(), before)

    @pytest.mark.parametrize("mode", [BoundsCheckMode.WARNING, BoundsCheckMode.IGNORE], ids=lambda m: m.name)
    def test_the_others_read_row_0_and_leave_the_caller_alone(
        self, bad: int, order: list[str], mode: BoundsCheckMode
    ) -> None:
        module = quantized(mode)
        features = batch(bad).permute([["a", "b"].index(key) for key in order])
        before = features.values().clone()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = module(features).values()
        assert torch.equal(answer, module(batch(0)).values())
        assert torch.equal(features.values(), before)
        texts = [str(w.message) for w in caught]
        if mode is BoundsCheckMode.WARNING:
            assert len(texts) == 1
            assert f"feature 'a' got ID {bad}" in texts[0]
            assert "row 0 is read instead" in texts[0]
        else:
            assert texts == []

    def test_scripted_graphs_raise_too(self, bad: int, order: list[str]) -> None:
        script = scripted(quantized(), order)
        good = batch(2).permute([["a", "b"].index(key) for key in order])
        assert torch.equal(
            script(good.lengths(), good.values(), torch.zeros(0))["a"], quantized()(batch(2))["a"]
        )
        features = batch(bad).permute([["a", "b"].index(key) for key in order])
        with pytest.raises(RuntimeError):
            script(features.lengths(), features.values(), torch.zeros(0))


@pytest.mark.parametrize("bad", BAD_IDS)
class TestPolicies:
    def test_hash_takes_the_remainder(self, bad: int) -> None:
        module = quantized(t=IdPolicy.HASH)
        expected = module(batch(bad % ROWS)).values()
        assert torch.equal(module(batch(bad)).values(), expected)
        assert torch.equal(module(batch(bad).permute([1, 0])).values(), expected)

    @pytest.mark.parametrize("other", [IdPolicy.REJECT, IdPolicy.ZERO, IdPolicy.HASH, IdPolicy.FMIX64])
    def test_fmix64_changes_every_id_of_its_table(self, bad: int, other: IdPolicy) -> None:
        module = quantized(t=IdPolicy.FMIX64, u=other)
        mixed = {"a": [[row_of(1, ROWS), row_of(4, ROWS)], [row_of(0, ROWS), row_of(bad, ROWS)]]}
        others = [[row_of(8, 9)], [row_of(3, 9)]] if other is IdPolicy.FMIX64 else [[8], [3]]
        expected = quantized()(kjt_of({**mixed, "b": others})).values()
        assert torch.equal(module(batch(bad)).values(), expected)
        assert torch.equal(module(batch(bad).permute([1, 0])).values(), expected)

    def test_zero_adds_nothing(self, bad: int) -> None:
        module = quantized(t=IdPolicy.ZERO)
        without = kjt_of({"a": [[1, 4], [0]], "b": [[8], [3]]})
        expected = module(without).values()
        assert torch.equal(module(batch(bad)).values(), expected)
        assert torch.equal(module(batch(bad).permute([1, 0])).values(), expected)

    def test_zero_counts_in_a_mean(self, bad: int) -> None:
        bad = bad if bad != ROWS else -3
        module = quantized(u=IdPolicy.ZERO)
        got = module(kjt_of({"a": [[]], "b": [[3, bad]]}))["b"]
        assert torch.equal(got, module(kjt_of({"a": [[]], "b": [[3]]}))["b"] / 2)

    def test_each_table_keeps_its_own(self, bad: int) -> None:
        module = quantized(t=IdPolicy.HASH, u=IdPolicy.ZERO)
        both = kjt_of({"a": [[bad]], "b": [[bad if not 0 <= bad < 9 else -1]]})
        answer = module(both)
        assert torch.equal(answer["a"], module(kjt_of({"a": [[bad % ROWS]], "b": [[]]}))["a"])
        assert not answer["b"].any()
        with pytest.raises(ValueError, match=f"feature 'a' got ID {bad} "):
            quantized(u=IdPolicy.ZERO)(batch(bad))

    @pytest.mark.parametrize("policy", [IdPolicy.HASH, IdPolicy.ZERO, IdPolicy.FMIX64])
    def test_scripted_and_cut_by_rows(self, bad: int, policy: IdPolicy) -> None:
        module = quantized(t=policy)
        plan = {t.name: row_wise(t, [1, 0]) for t in TABLES}
        cut = module.shard(plan, ShardingEnv.over_devices(["cpu", "cpu"]))
        features = batch(bad)
        expected = module(features)
        for name, answer in outputs_of(cut(features)).items():
            torch.testing.assert_close(answer, expected[name])
        from_graph = scripted(cut, ["a", "b"])(features.lengths(), features.values(), torch.zeros(0))
        assert torch.equal(from_graph["a"], cut(features)["a"])


def test_sequences_follow_the_policies_too() -> None:
    options = ShardedOptions(id_policies={"t": IdPolicy.HASH, "u": IdPolicy.ZERO})
    tables = [sequence("t", 4, 8, ["a"]), sequence("u", 4, 8, ["b"]), sequence("v", 4, 8, ["c"])]
    module = QuantEmbeddingCollection.from_float(EmbeddingCollection(tables), options=options)
    got = module(kjt_of({"a": [[-1, 6]], "b": [[-1, 2]], "c": [[3]]}))
    plain = module(kjt_of({"a": [[3, 2]], "b": [[0, 2]], "c": [[3]]}))
    assert torch.equal(got["a"].values(), plain["a"].values())
    assert not got["b"].values()[0].any()
    assert torch.equal(got["b"].values()[1], plain["b"].values()[1])
    with pytest.raises(ValueError, match="feature 'c' got ID 4 "):
        module(kjt_of({"a": [[]], "b": [[]], "c": [[4]]}))


BIG = 2**62
LIES = {
    "too large": [5, 5, 5, 5],
    "too small": [0, 0, 0, 0],
    "negative": [-1, 1, 1, 1],
    "negative that cancels": [-1, 3, 0, 0],
    "negative at the end": [1, 1, 1, -1],
    "far too large": [2**40, 0, 0, 0],
    "beyond int32": [2**32 + 1, 1, 0, 0],
    "a sum that wraps around": [BIG, BIG, BIG, BIG + 2],
}
# One process runs them all: a crash would take the interpreter with it.
LYING = """
import itertools, json, sys
import torch
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.kernels.bounds import BoundsCheckMode
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection
from recsys.sharding.sharded import ShardedOptions
from recsys.inputs.signature import IdPolicy
from tests.support.helpers import bag, sequence

lies = json.loads(sys.argv[1])
wrong = []
for mode, policy, kind in itertools.product(BoundsCheckMode, IdPolicy, ("plain", "weighted", "rows")):
    options = ShardedOptions(bounds_check_mode=mode, id_policies={"t": policy})
    if kind == "rows":
        rows = EmbeddingCollection([sequence("t", 9, 8, ["a"]), sequence("u", 9, 8, ["b"])])
        module = QuantEmbeddingCollection.from_float(rows, options=options)
    else:
        bags = EmbeddingBagCollection([bag("t", 9, 8, ["a"]), bag("u", 9, 8, ["b"])], kind == "weighted")
        module = QuantEmbeddingBagCollection.from_float(bags, options=options)
    weights = [1.0, 1.0] if kind == "weighted" else None
    for keys, (lie, lengths) in itertools.product((["a", "b"], ["b", "a"]), lies.items()):
        case = f"{mode.name}, {policy}, {kind}, {keys}, {lie}"
        print(case, file=sys.stderr, flush=True)
        try:
            module(KeyedJaggedTensor(keys, [1, 2], lengths=lengths, weights=weights))
            wrong.append(f"{case}: passed")
        except ValueError as error:
            if "lengths: got" not in str(error):
                wrong.append(f"{case}: {error}")
        except Exception as error:
            wrong.append(f"{case}: {type(error).__name__}: {error}")
print(json.dumps(wrong))
"""


def test_lengths_that_lie_are_value_errors_everywhere() -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-W", "ignore", "-c", LYING, json.dumps(LIES)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"died after: {done.stderr[-300:]}"
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize("lengths", LIES.values(), ids=LIES)
def test_the_structure_check_alone_refuses_lies(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths: got"):
        StructureCheck()(torch.tensor(lengths), torch.tensor([1, 2]))


def test_the_checks_pass_what_is_right() -> None:
    StructureCheck()(torch.tensor([1, 0, 1]), torch.tensor([1, 2]))
    StructureCheck()(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    check = IdCheck([IdRange(name="a", num_embeddings=3), IdRange(name="b", num_embeddings=7)])
    values, offsets = check(torch.tensor([2, 1]), torch.tensor([0, 2, 6]))
    assert values.tolist() == [0, 2, 6]
    assert offsets.tolist() == [0, 2, 3]


def test_a_bad_id_is_found_in_whichever_pair_it_is() -> None:
    names = "abc"
    check = IdCheck([IdRange(name=n, num_embeddings=3) for n in names])
    for at, name in enumerate(names):
        values = [0, 1, 2]
        values[at] = 3
        with pytest.raises(
            ValueError, match=f"feature '{name}' got ID 3 at its position 0, expected 0 <= ID < 3"
        ):
            check(torch.ones(3, dtype=torch.int64), torch.tensor(values))


def test_the_feature_and_its_table_are_named_where_it_has_several() -> None:
    tables = [bag("t", 9, 8, ["a"]), bag("u", 4, 8, ["a"])]
    module = QuantEmbeddingBagCollection.from_float(EmbeddingBagCollection(tables))
    with pytest.raises(ValueError, match="feature 'a@u' got ID 4 at its position 1, expected 0 <= ID < 4"):
        module(kjt_of({"a": [[3, 4]]}))


@pytest.mark.parametrize(("ids", "lengths"), list(itertools.product([torch.int32, torch.int64], repeat=2)))
def test_every_mix_of_integer_types_is_read_right(ids: torch.dtype, lengths: torch.dtype) -> None:
    features = batch(2)
    mixed = KeyedJaggedTensor(
        features.keys(), features.values().to(ids), lengths=features.lengths().to(lengths)
    )
    assert torch.equal(quantized()(mixed).values(), quantized()(features).values())


class TestWhatTheOperatorWouldMisread:
    def test_ids_and_lengths_with_gaps_in_memory(self) -> None:
        features = batch(2)
        spread = KeyedJaggedTensor(
            features.keys(),
            torch.stack([features.values(), features.values() + 99], dim=1)[:, 0],
            lengths=torch.stack([features.lengths(), features.lengths() + 99], dim=1)[:, 0],
        )
        assert not spread.values().is_contiguous()
        assert torch.equal(quantized()(spread).values(), quantized()(features).values())

    def test_weights_with_gaps_in_memory_and_of_another_type(self) -> None:
        # One call of the kernel, which gets the weights as they come: nothing before it copies them.
        tables = [bag("t", ROWS, 8, ["a"]), bag("u", 9, 8, ["b"])]
        module = QuantEmbeddingBagCollection.from_float(EmbeddingBagCollection(tables, is_weighted=True))
        features = batch(2)
        weights = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
        spread = torch.stack([weights.double(), weights.double() + 99], dim=1)[:, 0]

        def answer(w: torch.Tensor) -> torch.Tensor:
            given = KeyedJaggedTensor(features.keys(), features.values(), w, features.lengths())
            result: torch.Tensor = module(given).values()
            return result

        assert torch.equal(answer(spread.float()), answer(weights))
        assert torch.equal(answer(weights.double()), answer(weights))
        assert torch.equal(answer(spread), answer(weights))
        gaps = torch.stack([weights, weights + 99], dim=1)[:, 0]
        assert not gaps.is_contiguous()
        assert torch.equal(answer(gaps), answer(weights))
        from_graph = scripted(module, ["a", "b"], weighted=True)(features.lengths(), features.values(), gaps)
        assert torch.equal(torch.cat(list(from_graph.values()), dim=1), answer(weights))

    @pytest.mark.parametrize("what", ["values", "weights"])
    def test_two_dimensions(self, what: str) -> None:
        module = QuantEmbeddingBagCollection.from_float(EmbeddingBagCollection(TABLES, is_weighted=True))
        given = {"values": torch.tensor([1, 2]), "weights": torch.tensor([1.0, 2.0])}
        given[what] = given[what].unsqueeze(1).expand(-1, 2)
        with pytest.raises(ValueError, match=rf"{what}: got shape \[2, 2\], expected one dimension"):
            module(KeyedJaggedTensor(["a", "b"], **given, lengths=[1, 1]))

    def test_float_ids(self) -> None:
        with pytest.raises(ValueError, match=r"values: got dtype torch.float32, expected int32 or int64"):
            quantized()(KeyedJaggedTensor(["a", "b"], [1.0, 2.0], lengths=[1, 1]))

    def test_a_batch_that_is_not_in_host_memory(self) -> None:
        with pytest.raises(ValueError, match="got a batch on meta, expected host memory"):
            quantized()(batch(2).to("meta"))
