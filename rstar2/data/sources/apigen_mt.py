"""APIGen-MT: conversations with a policy in the system text, tools as JSON, and one call or one reply per turn."""

from __future__ import annotations

from rstar2.data.sharegpt import sharegpt_row
from rstar2.data.source import HubSet, Source

SOURCE = Source(
    kind="conversations",
    family="function-calls",
    licence="CC-BY-NC-4.0 (its card; not checked)",
    columns=(("system", "tools", "conversations"),),
    read=sharegpt_row,
    rows="5K",
    download="about 50 MB, estimated",
    disk="about 100 MB",
    hub=(HubSet("Salesforce/APIGen-MT-5k", None, "train"),),
    gated=True,
    paper="5K",
)
