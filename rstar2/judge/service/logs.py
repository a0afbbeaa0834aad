"""Reading the logs of all parts of a judge together, for `rstar2 judge logs`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

TAIL_BYTES = 1 << 20
POLL_S = 0.2


def tail(path: Path, count: int) -> list[str]:
    """The last `count` lines of a file, of at most its last MiB."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace").splitlines()[-count:] if count else []


def follow(folder: Path, part: str = "") -> Iterator[tuple[str, str]]:
    """Lines of `<part>.log` files in `folder` as they are written, as (part, line), for ever.

    Parts that start later are followed too; only parts whose name begins with `part`.
    """
    read_up_to = {path: path.stat().st_size for path in folder.glob(f"{part}*.log")}
    while True:
        for path in sorted(folder.glob(f"{part}*.log")):
            with path.open("rb") as file:
                file.seek(read_up_to.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            read_up_to[path] = read_up_to.get(path, 0) + len(whole)
            for line in whole.decode("utf-8", "replace").splitlines():
                yield path.stem, line
        time.sleep(POLL_S)
