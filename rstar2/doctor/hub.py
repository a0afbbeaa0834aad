"""Checks the cache of the model hub, and whether the hub is asked at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rstar2.doctor.finding import Finding, sized
from rstar2.files import existing_folder, home_folder
from rstar2.machine import GIB

HUB_GIB = 5
"""A model of 1B parameters in bfloat16 takes less than half of this."""
_TRUE = ("1", "ON", "YES", "TRUE")
"""Source: huggingface_hub/constants.py, as are the variables' names and order."""
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def hub_cache() -> Finding:
    """Where models and data sets of the hub are kept, how many and with how much room, and whether it is asked."""
    cache = _cache_folder()
    kept = sum(1 for kind in ("models", "datasets") for _ in cache.glob(f"{kind}--*"))
    folder = existing_folder(cache)
    free = shutil.disk_usage(folder).free
    set_here = [name for name in _OFFLINE if os.environ.get(name, "").upper() in _TRUE]
    asked = f"offline by {set_here[0]}" if set_here else os.environ.get("HF_ENDPOINT") or "online"
    found = f"{cache}: {kept} models and data sets, {free / GIB:.1f} GiB free, {asked}"
    if not os.access(folder, os.W_OK):
        return sized(
            "hub cache", f"{found}, not writable", False, "Set HF_HOME to a folder that you may write to."
        )
    if set_here and not kept:
        more = f"Nothing of the hub can be used: unset {set_here[0]}, or fill the cache on a machine with a network."
        return sized("hub cache", found, False, more)
    return sized(
        "hub cache", found, free >= HUB_GIB * GIB, "Make room there, or set HF_HOME to another disk."
    )


def _cache_folder() -> Path:
    environment = os.environ
    if named := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named).expanduser()
    if home := environment.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    caches = environment.get("XDG_CACHE_HOME")
    return (Path(caches).expanduser() if caches else home_folder() / ".cache") / "huggingface" / "hub"
