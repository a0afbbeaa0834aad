"""Reads data sets from the Hugging Face hub, and says what to do where it cannot be reached."""

from __future__ import annotations

import logging
from typing import Any

from rstar2.errors import UserError


def load_hub(name: str, hub_id: str, config: str | None, split: str, more: str = "") -> Any:
    """One split of a data set, from the hub or the local cache: a `datasets.Dataset`.

    Args:
        name: what the user calls it.
        more: what else the user may have to do, where it cannot be loaded.

    Raises:
        UserError: it cannot be loaded.
    """
    import datasets

    # Without a network each of its retries would be logged.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        return datasets.load_dataset(hub_id, config, split=split)
    # The hub's libraries raise anything from OSError to their own types when it cannot be reached.
    except Exception as error:
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name}: cannot load {hub_id} from the dataset hub or the local cache: {cause[:200]}",
            f"Without a network give the problems as a file: --data FILE.jsonl (problem, answer). {more}".rstrip(),
        ) from error
