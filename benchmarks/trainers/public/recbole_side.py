"""RecBole's DeepFM and SASRec by its own trainer, over atomic files of numbered columns that it reads once.

Names that NumPy 2 has taken out and RecBole 1.2.1 asks for are put back in this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.trainers.public.task import TOP, Rows, Task, rank_qualities
from benchmarks.trainers.public.worker import serve

_DATASET = "table"
# The names that its sequential data sets expect.
_USER, _ITEM, _HISTORY = "user_id", "item_id", "item_id_list"
_PARTS = {"train": "train", "valid": "held_out", "test": "held_out"}
_SCORED_ROWS = 4096
_MODELS = {"deepfm": "DeepFM", "sasrec": "SASRec"}


class RecBoleSide:
    """``recbole.trainer.Trainer``, an epoch for each call."""

    def __init__(self, task: Task, folder: Path) -> None:
        _restore_numpy_names()
        sys.argv = sys.argv[:1]  # RecBole would read this command's arguments as its own
        os.chdir(folder)  # and writes logs where it runs
        from recbole.config import Config
        from recbole.data import create_dataset, data_preparation
        from recbole.trainer import Trainer
        from recbole.utils import get_model, init_seed

        atomic = folder / _DATASET
        atomic.mkdir()
        for name, part in _PARTS.items():
            write = _write_prefixes if task.model == "sasrec" else _write
            write(atomic / f"{_DATASET}.{name}.inter", Rows.load(folder, part), task)
        settings = _settings(task, folder) | (_of_sequences(task) if task.model == "sasrec" else {})
        config = Config(model=_MODELS[task.model], dataset=_DATASET, config_dict=settings)
        init_seed(config["seed"], config["reproducibility"])
        dataset = create_dataset(config)
        self._train, _, held_out = data_preparation(config, dataset)
        self._held_out = held_out.dataset.inter_feat
        self._is_ranked = task.model == "sasrec"
        self._model = get_model(config["model"])(config, self._train.dataset)
        self._trainer = Trainer(config, self._model)

    def epoch(self, number: int) -> None:
        """Train on all rows."""
        self._trainer._train_epoch(self._train, number, show_progress=False)

    @torch.no_grad()
    def scores(self) -> NDArray[Any] | dict[str, float]:
        """Return probabilities ``[N]``, or metrics of next items."""
        self._model.eval()
        if self._is_ranked:
            scores = self._model.full_sort_predict(self._held_out).view(len(self._held_out), -1)
            scores[:, 0] = -torch.inf  # the ID of no item
            own = scores.gather(1, self._held_out[_ITEM].unsqueeze(1))
            return rank_qualities((scores >= own).sum(1).numpy() - 1)
        starts = range(0, len(self._held_out), _SCORED_ROWS)
        found = [self._model.predict(self._held_out[start : start + _SCORED_ROWS]) for start in starts]
        return torch.cat(found).numpy()


def _settings(task: Task, folder: Path) -> dict[str, Any]:
    columns = ["label", *task.features, *(f"dense_{i}" for i in range(task.num_dense)), *task.lists]
    user, item = [*task.features, ""][:2]  # RecBole needs both; a DeepFM takes them as any other feature
    return {
        "data_path": str(folder),
        "checkpoint_dir": str(folder / "saved"),
        "benchmark_filename": list(_PARTS),
        "load_col": {"inter": columns},
        "USER_ID_FIELD": user,
        "ITEM_ID_FIELD": item,
        "LABEL_FIELD": "label",
        "numerical_features": [f"dense_{i}" for i in range(task.num_dense)],
        "train_neg_sample_args": None,
        "eval_args": {"mode": "labeled", "order": "RO", "split": {"RS": [0.8, 0.1, 0.1]}, "group_by": None},
        "metrics": ["AUC"],
        "valid_metric": "AUC",
        "train_batch_size": task.batch_size,
        "embedding_size": task.embedding_dim,
        "mlp_hidden_size": list(task.layers),
        "use_gpu": False,
        "state": "ERROR",
        "show_progress": False,
    }


def _of_sequences(task: Task) -> dict[str, Any]:
    sequence = task.sequence
    return {
        "load_col": {"inter": [_USER, _HISTORY, _ITEM]},
        "USER_ID_FIELD": _USER,
        "ITEM_ID_FIELD": _ITEM,
        "LABEL_FIELD": None,
        "alias_of_item_id": [_HISTORY],
        "MAX_ITEM_LIST_LENGTH": sequence.max_history,
        "eval_args": {"mode": "full", "order": "TO", "split": {"LS": "valid_and_test"}, "group_by": "user"},
        "metrics": ["NDCG"],
        "topk": [TOP],
        "valid_metric": f"NDCG@{TOP}",
        "hidden_size": task.embedding_dim,
        "inner_size": task.embedding_dim,
        "n_layers": sequence.num_layers,
        "n_heads": sequence.num_heads,
        "hidden_dropout_prob": sequence.dropout,
        "attn_dropout_prob": sequence.dropout,
    }


def _write_prefixes(path: Path, rows: Rows, task: Task) -> None:
    """Write a line for each next item: each item but the first of training rows, that which follows held-out ones."""
    size = task.sequence.max_history
    (histories,) = rows.lists.values()
    is_held_out = rows.ids.shape[1] > 0
    with path.open("w", encoding="utf-8") as file:
        print(f"{_USER}:token", f"{_HISTORY}:token_seq", f"{_ITEM}:token", sep="\t", file=file)
        for user, padded in enumerate(histories.tolist()):
            items = [one for one in padded if one >= 0]
            following = [rows.ids[user, 0]] if is_held_out else items[1:]
            for i, one in enumerate(following, start=len(items) if is_held_out else 1):
                print(user, " ".join(map(str, items[max(0, i - size) : i])), one, sep="\t", file=file)


def _write(path: Path, rows: Rows, task: Task) -> None:
    """Write an atomic file: a header of names with types, and a line for each row."""
    headings = ["label:float", *(f"{name}:token" for name in task.features)]
    headings += [f"dense_{i}:float" for i in range(task.num_dense)] + [
        f"{name}:token_seq" for name in task.lists
    ]
    with path.open("w", encoding="utf-8") as file:
        print(*headings, sep="\t", file=file)
        for line in _lines(rows):
            print(*line, sep="\t", file=file)


def _lines(rows: Rows) -> Iterator[list[object]]:
    for i in range(len(rows)):
        lists = [" ".join(str(j) for j in ids[i].tolist() if j >= 0) for ids in rows.lists.values()]
        yield [rows.labels[i], *rows.ids[i].tolist(), *rows.dense[i].tolist(), *lists]


def _restore_numpy_names() -> None:
    for old, new in {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_}.items():
        setattr(np, old, new)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve("RecBole", ["recbole", "torch"], RecBoleSide)
