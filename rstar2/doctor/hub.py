"""Checks the cache of the model hub, and whether environment variables forbid requests to the hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rstar2.doctor.finding import Finding, sized
from rstar2.files import existing_folder, home_folder
from rstar2.machine import GIB

HUB_GIB = 5
"""Disk space, in GiB, that is enough for a few models. A model with 1B parameters in bfloat16 needs less than half of
this space.
"""
_TRUE = ("1", "ON", "YES", "TRUE")
"""Values of an environment variable that mean yes. These values, and the variables below, are the same as in
huggingface_hub/constants.py.
"""
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def hub_cache() -> Finding:
    """Checks the hub's cache (folder, models and data sets, free space), and whether requests to the hub are
    allowed."""
    cache = _cache_folder()
    cached = sum(1 for kind in ("models", "datasets") for _ in cache.glob(f"{kind}--*"))
    folder = existing_folder(cache)
    free = shutil.disk_usage(folder).free
    offline_by = [name for name in _OFFLINE if os.environ.get(name, "").upper() in _TRUE]
    endpoint = os.environ.get("HF_ENDPOINT")
    # The hub is not asked, so nothing is said about whether it can be reached.
    online = f"HF_ENDPOINT is {endpoint}" if endpoint else f"{_OFFLINE[0]} is not set"
    network = f"offline by {offline_by[0]}" if offline_by else online
    result = f"{cache}: {cached} models and data sets, {free / GIB:.1f} GiB free, {network}"
    if not os.access(folder, os.W_OK):
        return sized(
            "hub cache", f"{result}, not writable", False, "Set HF_HOME to a folder that you may write to."
        )
    if offline_by and not cached:
        more = (
            f"The cache is empty and {offline_by[0]} forbids downloads: unset {offline_by[0]}, or fill the cache on a "
            "machine with a network."
        )
        return sized("hub cache", result, False, more)
    more = "Free space on this disk, or set HF_HOME to a folder on another disk."
    return sized("hub cache", result, free >= HUB_GIB * GIB, more)


def _cache_folder() -> Path:
    environment = os.environ
    if named := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named).expanduser()
    if home := environment.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    caches = environment.get("XDG_CACHE_HOME")
    return (Path(caches).expanduser() if caches else home_folder() / ".cache") / "huggingface" / "hub"
