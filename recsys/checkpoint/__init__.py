"""Checkpoints: a trained model in one file (``single_file``), a training run in a directory (``distributed``)."""

from recsys.checkpoint.single_file import Checkpoint, build_model, load_checkpoint, save_checkpoint

__all__ = ["Checkpoint", "build_model", "load_checkpoint", "save_checkpoint"]
