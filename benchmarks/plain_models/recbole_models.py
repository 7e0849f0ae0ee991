"""The models of RecBole, over a small data set in its atomic files: a dict, as their Interaction is."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.plain_models.catalogue import (
    HISTORY,
    NUM_EXAMPLES,
    NUM_ROWS,
    PublicModel,
    histories,
    ids,
    lengths_of,
)

# Names that NumPy 2 has taken out, which RecBole 1.2.1 reads when its configuration is made.
for _old, _new in {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}.items():
    setattr(np, _old, _new)

from recbole.config import Config  # noqa: E402
from recbole.data import create_dataset  # noqa: E402
from recbole.model.sequential_recommender.fossil import FOSSIL  # noqa: E402
from recbole.utils import get_model  # noqa: E402

_CONTEXT = """
    AFM AutoInt DCN DCNV2 DeepFM DSSM EulerNet FFM FiGNN FM FNN FwFM KD_DAGFM LR NFM PNN WideDeep xDeepFM
"""
_SEQUENTIAL = """
    BERT4Rec CORE Caser DIEN DIN FDSA FEARec FOSSIL FPMC GCSAN GRU4Rec GRU4RecF HGN HRM LightSANs NARM NPE NextItNet
    RepeatNet SASRec SASRecF SINE SRGNN STAMP TransRec
"""
_GENERAL = "BPR ConvNCF ENMF NeuMF"
# Sequential models that read features of items.
_OF_ITEMS = ("SASRecF", "GRU4RecF", "FDSA", "DIN", "DIEN")
_SMALL = {
    "embedding_size": 8,
    "hidden_size": 8,
    "inner_size": 16,
    "n_layers": 2,
    "n_heads": 2,
    "mlp_hidden_size": [16, 8],
    "num_layers": 1,
}


def public_models() -> list[PublicModel]:
    """Return context-aware, sequential and general models; those of graphs and whole matrices are left out."""
    return [
        PublicModel(library="recbole", name=name, make=partial(_made, name), method="predict")
        for name in f"{_CONTEXT} {_SEQUENTIAL} {_GENERAL}".split()
    ]


def _made(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    with tempfile.TemporaryDirectory() as folder, _no_arguments():
        _write_data(Path(folder) / "tiny")
        config = Config(model=name, dataset="tiny", config_dict=_settings(name, folder))
        dataset = create_dataset(config)
        train = dataset.build()[0]
        model = _class(name)(config, train)
    return model, (_batch(name, train),)


def _class(name: str) -> Any:
    return FOSSIL if name == "FOSSIL" else get_model(name)


def _settings(name: str, folder: str) -> dict[str, Any]:
    columns = {"inter": ["user_id", "item_id", "timestamp", "label"]}
    if name in [*_CONTEXT.split(), *_OF_ITEMS]:
        columns |= {"user": ["user_id", "age", "gender"], "item": ["item_id", "genre"]}
    return {
        **_SMALL,
        "embedding_size": 64 if name == "ConvNCF" else 8,
        "data_path": folder,
        "load_col": columns,
        "use_gpu": False,
        "state": "ERROR",
        "show_progress": False,
        "train_neg_sample_args": None,
        "MAX_ITEM_LIST_LENGTH": HISTORY,
        "LABEL_FIELD": "label",
        "selected_features": ["genre"],
    }


def _batch(name: str, dataset: Any) -> dict[str, torch.Tensor]:
    """Return what RecBole's loaders give to ``predict``."""
    found = {"user_id": ids(NUM_EXAMPLES, begin=1), "item_id": ids(NUM_EXAMPLES, begin=1)}
    if name in _SEQUENTIAL.split():
        found |= {"item_id_list": histories(num_rows=dataset.num("item_id")), "item_length": lengths_of()}
    if "age" in dataset.field2type:
        found |= {"age": ids(NUM_EXAMPLES, end=dataset.num("age")), "gender": ids(NUM_EXAMPLES, end=3)}
        found["genre"] = histories(3, dataset.num("genre"))
    if name in _OF_ITEMS:
        genres = histories(3, dataset.num("genre")).unsqueeze(1)
        found |= {"neg_item_id_list": histories(num_rows=dataset.num("item_id"))} if name == "DIEN" else {}
        found["genre_list"] = genres * (found["item_id_list"] > 0).unsqueeze(2)
    return found


def _write_data(folder: Path) -> None:
    drawn = random.Random(0)
    users, items = range(NUM_ROWS), range(NUM_ROWS)
    rows = [f"{u}\t{drawn.choice(items)}\t{time}\t{time % 2}" for time in range(10) for u in users]
    rows += [f"{drawn.choice(users)}\t{i}\t{time}\t{time % 2}" for time in range(5) for i in items]
    tables = {
        "inter": ["user_id:token\titem_id:token\ttimestamp:float\tlabel:float", *rows],
        "user": [
            "user_id:token\tage:token\tgender:token",
            *(f"{u}\t{20 + u % 30}\t{'MF'[u % 2]}" for u in users),
        ],
        "item": [
            "item_id:token\tgenre:token_seq",
            *(f"{i}\t{' '.join('abcdef'[: 1 + i % 3])}" for i in items),
        ],
    }
    folder.mkdir()
    for name, lines in tables.items():
        (folder / f"{folder.name}.{name}").write_text("\n".join([*lines, ""]))


@contextmanager
def _no_arguments() -> Iterator[None]:
    """Hide this command's arguments, which RecBole would read as its own."""
    before, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = before
