"""Glaive's function calls, version 2, in the ShareGPT form. The set has 101K rows, which is the number in the paper."""

from __future__ import annotations

from rstar2.data.sharegpt import sharegpt_row
from rstar2.data.source import HubSet, Source

SOURCE = Source(
    kind="conversations",
    family="function-calls",
    licence="Apache-2.0 (its card; not checked)",
    columns=(("conversations", "tools"),),
    read=sharegpt_row,
    rows="100,563",
    download="251 MB",
    disk="about 500 MB",
    hub=(HubSet("hiyouga/glaive-function-calling-v2-sharegpt", None, "train"),),
    paper="101K; an alternative to glaive-v2",
)
