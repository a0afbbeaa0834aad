"""A dataset of conversations for VERL's SFT trainer. `rstar2.train.encoding` has encoded the conversations in the same
way as rollouts.

Every rank memory-maps the same file, so all ranks of a node share the pages that they read.
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
    """The encoded conversations as a dataset. VERL's setting `data.custom_cls` names this class.

    Rows are not padded, in line with the default of VERL's `data.pad_mode`.

    Args:
        parquet_files: a file that `rstar2.train.split` wrote, such as `train.npy`. The file contains the indices of the
            dataset's conversations. The file `train.arrow` in the same folder contains all conversations. The name of
            this parameter comes from VERL.
        config: the table `data` of VERL's config. Conversations are truncated to its `max_length` tokens.
    """

    def __init__(self, parquet_files: str | list[str], config: Mapping[str, Any], **_: Any) -> None:
        [file] = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self._file = Path(file)
        self._max_tokens = int(config["max_length"])
        self._open()

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Returns the tensors `input_ids`, `position_ids` and `loss_mask` of a conversation, each of shape (T,)."""
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
        """Returns the state for pickling, without the open files. The receiving process opens the files itself."""
        return {"_file": self._file, "_max_tokens": self._max_tokens}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _open(self) -> None:
        self._numbers = np.load(self._file, mmap_mode="r")
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(str(self._file.with_suffix(".arrow"))))
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self._offsets: list[int] = list(accumulate((batch.num_rows for batch in self._batches), initial=0))
        """Batch `i` contains the rows `_offsets[i]` to `_offsets[i + 1] - 1`. The last entry is the total number of
        rows."""


def _integers(row: Any, most: int) -> torch.Tensor:
    """Returns a tensor with a copy of the first `most` integers of a row."""
    return torch.from_numpy(row.values.to_numpy()[:most].astype(np.int64))
