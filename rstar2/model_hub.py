"""Asks the model hub once whether it has a model, so that a wrong name or a missing network is told at once."""

from __future__ import annotations

from pathlib import Path

from rstar2.errors import UserError, did_you_mean
from rstar2.model_shape import SHAPES

_ANSWER_S = 10.0
"""How long the hub may take to answer. Seconds."""


def check_on_hub(hub_id: str, *files: str) -> None:
    """Raise a UserError if the hub cannot give a model's files, unless one of `files` is in its cache.

    The library itself asks a hub that is out of reach six times within 24 s, and writes a line for each.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    if any(cached_file(hub_id, file) is not None for file in files):
        return
    meant = did_you_mean(hub_id, SHAPES)
    try:
        get_hf_file_metadata(hf_hub_url(hub_id, files[0]), timeout=_ANSWER_S)
    except GatedRepoError as error:
        raise UserError(
            f"{hub_id} is gated on the hub",
            "Accept its terms on its page, and log in with `hf auth login` or HF_TOKEN.",
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"the hub has no model {hub_id}{meant}",
            "Check the name; a private model needs `hf auth login` or HF_TOKEN.",
        ) from error
    except HFValidationError as error:
        raise UserError(
            f"{hub_id} is no folder here, and no name of a model on the hub{meant}", "Check the path."
        ) from error
    except HfHubHTTPError:
        return  # the hub answers, and may lack this file alone
    # The library raises its own types and those of its HTTP client.
    except Exception as error:
        raise UserError(
            f"the hub cannot be asked for {hub_id} ({first_line(error)}), and its cache does not have it{meant}",
            f"Give a model's folder, or a network. `rstar2 plan` knows without one: {', '.join(SHAPES)}.",
        ) from error


def cached_file(hub_id: str, file: str) -> Path | None:
    """A model's file in the hub's cache; None if it is not there."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ModuleNotFoundError:  # then nothing filled the cache from here
        return None
    try:
        cached = try_to_load_from_cache(hub_id, file)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None


def first_line(error: Exception) -> str:
    """The first line of what an error says, at most 200 characters; its type if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
