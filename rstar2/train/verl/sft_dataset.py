"""Gives VERL's SFT trainer conversations that are encoded already, as rollouts are (`rstar2.train.encoding`).

Every rank reads the same file, which is mapped into its memory: the pages that it reads belong to the machine's file
cache and are shared by all ranks of a node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from torch.utils.data import Dataset


class EncodedConversations(Dataset):  # type: ignore[misc]
    """Named by VERL's setting `data.custom_cls`; rows are not padded, as VERL's `data.pad_mode` is by default.

    Args:
        parquet_files: VERL's name for the file of `rstar2.train.split`, such as `train.npy`: the numbers of the
            conversations that count. `train.arrow` beside it holds them all.
        config: VERL's table `data`. Conversations are cut at its `max_length` tokens.
    """

    def __init__(self, parquet_files: str | list[str], config: Mapping[str, Any], **_: Any) -> None:
        [file] = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self._file = Path(file)
        self._max_tokens = int(config["max_length"])
        self._open()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """`input_ids`, `position_ids` and `loss_mask`, each of shape (T,)."""
        place = int(self._numbers[index])
        number = bisect_right(self._offsets, place) - 1
        batch, row = self._batches[number], place - self._offsets[number]
        ids = _integers(batch.column("input_ids")[row], self._max_tokens)
        return {
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "loss_mask": _integers(batch.column("loss_mask")[row], self._max_tokens),
        }

    def __getstate__(self) -> dict[str, Any]:
        """A process that is sent the dataset opens the files itself."""
        return {"_file": self._file, "_max_tokens": self._max_tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _open(self) -> None:
        self._numbers = np.load(self._file, mmap_mode="r")
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(self._file.with_suffix(".arrow"))))
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._offsets: list[int] = list(accumulate((batch.num_rows for batch in self._batches), initial=0))
        """Batch `i` has the rows `_offsets[i]` to `_offsets[i + 1] - 1`. The last entry is the number of all rows."""


def _integers(row: Any, most: int) -> torch.Tensor:
    """The first `most` numbers of a row, copied out of the file."""
    return torch.from_numpy(row.values.to_numpy()[:most].astype(np.int64))
