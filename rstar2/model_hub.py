"""Checks whether the model hub has a model, with one request, so that a wrong name or a missing network is reported
immediately."""

from __future__ import annotations

from pathlib import Path

from rstar2.errors import UserError, did_you_mean
from rstar2.model_shape import SHAPES

_ANSWER_S = 10.0
"""Timeout in seconds for the hub's answer."""


def check_on_hub(hub_id: str, *files: str, for_plan: bool = False) -> None:
    """Raise UserError if the hub does not have a model or cannot be reached, unless the cache has one of `files`.

    If `for_plan` is true, the message also names the models whose shapes rstar2 ships, because a plan needs only the
    shape of a model. Without this check, huggingface_hub would try to reach the hub six times within 24 s, and print a
    line for each attempt.
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
    suggestion = did_you_mean(hub_id, SHAPES)
    try:
        get_hf_file_metadata(hf_hub_url(hub_id, files[0]), timeout=_ANSWER_S)
    except GatedRepoError as error:
        raise UserError(
            f"{hub_id} is gated on the hub",
            "Accept its terms on its page, and log in with `hf auth login` or HF_TOKEN.",
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f"the hub has no model {hub_id}{suggestion}",
            "Check the name. A private model needs `hf auth login` or HF_TOKEN.",
        ) from error
    except HFValidationError as error:
        raise UserError(
            f"{hub_id} is neither a folder nor the name of a model on the hub{suggestion}", "Check the path."
        ) from error
    except HfHubHTTPError:
        return  # the hub answers; it may only lack this file
    # The library raises its own exceptions and those of its HTTP client.
    except Exception as error:
        known = f" Known without a network: {', '.join(SHAPES)}." if for_plan else ""
        raise UserError(
            f"cannot ask the hub for {hub_id} ({first_line(error)}), and the hub's cache lacks the model{suggestion}",
            f"Check the network, or give the folder of a model instead of a hub id.{known}",
        ) from error


def cached_file(hub_id: str, file: str) -> Path | None:
    """Returns the path of a model's file in the hub's cache, or None if the cache does not have the file."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ModuleNotFoundError:  # without the library, no file was cached
        return None
    try:
        cached = try_to_load_from_cache(hub_id, file)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, at most 200 characters, or the error's type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
