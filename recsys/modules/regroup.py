"""Columns of several KeyedTensors side by side, by groups of keys."""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from torch import Tensor, nn

from recsys.configs import DataType, data_type_to_dtype
from recsys.jagged.keyed import KeyedTensor
from recsys.modules.copying import CacheMixin


class KTRegroupAsDict(nn.Module, CacheMixin):
    """``KeyedTensor.regroup_as_dict`` as a module.

    Args:
        groups: The features of each group.
        keys: The name of each group.
        emb_dtype: The data type of the results; None keeps that of the embeddings.
        multi_device: Has no effect: nothing here lies on a device.

    Raises:
        ValueError: The numbers of names and groups differ.
    """

    def __init__(
        self,
        groups: list[list[str]],
        keys: list[str],
        emb_dtype: DataType | None = None,
        multi_device: bool = False,
    ) -> None:
        super().__init__()
        del multi_device
        if len(groups) != len(keys):
            raise ValueError(f"keys: got {len(keys)} for {len(groups)} groups, expected one per group")
        self._groups = groups
        self._keys = keys
        self._dtype = None if emb_dtype is None else data_type_to_dtype(emb_dtype)

    def forward(self, keyed_tensors: list[KeyedTensor]) -> dict[str, Tensor]:
        """Return each group's columns by its name.

        Raises:
            KeyError: A key is in none of the tensors.
            ValueError: A key is in several of the tensors.
        """
        found = KeyedTensor.regroup_as_dict(keyed_tensors, self._groups, self._keys)
        if self._dtype is None:
            return found
        return {name: tensor.to(self._dtype) for name, tensor in found.items()}

    def clear_cache(self) -> None:
        """Do nothing: nothing is kept."""
