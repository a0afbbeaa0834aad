"""Finds and opens the files of a data set on the hub. Only files of the required split are used.

From parquet files, only the required columns are read, with HTTP range requests. Files that are not parquet
are downloaded to the hub's cache. If `HF_HUB_OFFLINE=1` is set, only files in the hub's cache are used.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from rstar2.data.source import HubSet
from rstar2.errors import Failure, UserError
from rstar2.files import existing_folder

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo

_ANSWER_S = 10.0
"""Timeout in seconds for the hub's answer to the first request about a data set."""
_CARD = "README.md"
_DATA = (".json", ".jsonl", ".parquet")
_ABOUT_DATA = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})
"""Files that the library `datasets` writes beside the data. They contain no rows."""
_SPLITS = {
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "val", "dev"),
    "train": ("train", "training"),
}
"""Dict from each split to the words that name it in a path."""
_CHOICE = re.compile(r"\{([^{}]*)\}")
"""Matches the alternatives `{a,b}` in a pattern."""
_NUMBERED = re.compile(r"^(.*)-\d+-of-(\d+)\.\w+$")
"""Matches the name of a file in a numbered series, such as `cot-00000-of-00144.parquet`."""


class _Retries(logging.Filter):
    """Shortens the log of the hub's library: one line per retried request, instead of two lines per retry."""

    def __init__(self) -> None:
        super().__init__()
        self._cause = ""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        cause, thrown, _ = message.partition(" thrown while requesting ")
        if thrown:
            self._cause = cause.strip("'")
            return False
        if " [Retry " not in message:
            return True
        record.msg = f"the dataset hub does not answer ({self._cause}); the request is repeated up to 5 times"
        record.args = ()
        return "[Retry 1/" in message


logging.getLogger("huggingface_hub.utils._http").addFilter(_Retries())
# Suppress warnings about cards without metadata, which are normal.
logging.getLogger("huggingface_hub.repocard").setLevel(logging.ERROR)


@dataclass(frozen=True)
class HubFile:
    """A file of a data set, at one revision."""

    hub_id: str
    revision: str
    name: str
    """The path of the file in the repository of the data set."""
    size: int
    local: Path | None
    """The path of the file in the hub's cache. None if the file is not in the cache."""

    def __str__(self) -> str:
        return f"{self.hub_id}/{self.name}"

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def is_downloaded_whole(self) -> bool:
        """Whether reading the file downloads all of it to the cache."""
        return self.local is None and self.suffix != ".parquet"

    def path(self) -> Path:
        """Returns the path of the file in the hub's cache. The file is downloaded if it is not in the cache."""
        from huggingface_hub import hf_hub_download

        if self.local is not None:
            return self.local
        with _connected(self.hub_id):
            return Path(hf_hub_download(self.hub_id, self.name, repo_type="dataset", revision=self.revision))

    @contextmanager
    def parquet(self) -> Iterator[pq.ParquetFile]:
        """Open the parquet file. Only the parts that the caller reads are downloaded."""
        from huggingface_hub import HfFileSystem

        if self.local is not None:
            with pq.ParquetFile(self.local) as opened:
                yield opened
            return
        url = f"datasets/{self.hub_id}@{self.revision}/{self.name}"
        with (
            _connected(self.hub_id),
            HfFileSystem().open(url, "rb", cache_type="none") as remote,
            pq.ParquetFile(remote, pre_buffer=True) as opened,
        ):
            yield opened


@dataclass(frozen=True)
class HubFiles:
    """The files of one split of a data set, in order."""

    part: HubSet
    revision: str
    files: tuple[HubFile, ...]


def located(name: str, part: HubSet, gated: bool = False) -> HubFiles:
    """Find the files of a split of a data set. The contents of the files are not read.

    Args:
        name: the name of the source, for messages.
        part: the data set, its config and its split.
        gated: whether the user must first accept the terms of the data set.

    Raises:
        UserError: the hub cannot be reached, or the data set is gated, is unknown or has no such split.
    """
    try:
        return _located(name, part)
    except UserError:
        raise
    # The hub's libraries raise OSError or one of many types of their own.
    except Exception as error:
        files = f"use a file with its rows: --from {name}=FILE (.json, .jsonl or .parquet)."
        raise refusal(name, part.hub_id, gated, files, error) from error


def refusal(name: str, hub_id: str, gated: bool, files: str, error: Exception) -> UserError:
    """Returns the UserError for an error of the hub's libraries. The hint of the error says what the user can do.

    Args:
        name: the name of the source, for the message.
        hub_id: the hub id of the data set.
        gated: whether the user must first accept the terms of the data set.
        files: a sentence, beginning in lower case, that says how to use files in place of the hub.
        error: the error of the library.
    """
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    terms = f"the terms at https://huggingface.co/datasets/{hub_id}, then run `hf auth login` or set HF_TOKEN"
    login = f"Accept {terms}"
    causes = [error, error.__cause__, error.__context__]
    if any(isinstance(each, GatedRepoError) for each in causes):
        return UserError(f"{name}: {hub_id} is gated, and this account has no access", f"{login}; or {files}")
    if isinstance(error, RepositoryNotFoundError):
        return UserError(
            f"{name}: the hub has no data set {hub_id}, or it is private",
            f"If it is private, run `hf auth login` or set HF_TOKEN. Otherwise {files}",
        )
    cause = _cause(error)
    if constants.HF_HUB_OFFLINE:
        online = "With a network, unset HF_HUB_OFFLINE"
        return UserError(
            f"{name}: cannot load {hub_id} from the local cache, and HF_HUB_OFFLINE is set: {cause}",
            f"{online}, accept {terms}; or {files}" if gated else f"{online}; or {files}",
        )
    offline = "Without a network, set HF_HUB_OFFLINE=1 to read the hub's cache"
    if isinstance(error, httpx.TransportError):
        return UserError(
            f"{name}: cannot reach the dataset hub for {hub_id}: {cause}", f"{offline}; or {files}"
        )
    hint = f"{login}; or {files}" if gated else f"{offline}; or {files}"
    return UserError(f"{name}: cannot load {hub_id} from the dataset hub: {cause}", hint)


def _cause(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def set_info(hub_id: str) -> DatasetInfo:
    """Returns the revision and the files of a data set. The request is sent once, without retries.

    Raises:
        httpx.TransportError: the hub cannot be reached.
        huggingface_hub.errors.HfHubHTTPError: the data set is unknown, or this account has no access to the files of
            the data set.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    info = api.dataset_info(hub_id, timeout=_ANSWER_S, files_metadata=True)
    if info.gated:
        api.auth_check(hub_id, repo_type="dataset")
    return info


@cache
def _located(name: str, part: HubSet) -> HubFiles:
    """Does the same as `located`, but raises the errors of the hub's libraries."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE:
        return _in_cache(name, part)
    info = set_info(part.hub_id)
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    card = ""
    if _CARD in sizes:
        # This is the card of the branch. A card of the revision could not be found offline by the branch's name.
        card = Path(hf_hub_download(part.hub_id, _CARD, repo_type="dataset")).read_text(encoding="utf-8")
    files = []
    paths = files_of_split(name, part, card, sizes)
    if not paths:
        raise _changed(name, f"no file of {part.hub_id} matches the patterns that its card has for {part}")
    for path in paths:
        cached = try_to_load_from_cache(part.hub_id, path, revision=info.sha, repo_type="dataset")
        files.append((path, sizes[path], Path(cached) if isinstance(cached, str) else None))
    return _complete(part, str(info.sha), files)


def _in_cache(name: str, part: HubSet) -> HubFiles:
    """Returns the files of the split in the hub's cache. Raises UserError if the cache has no files of the split."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    missing = UserError(
        f"{name}: HF_HUB_OFFLINE is set, and the hub's cache has no files of {part}",
        f"With a network, unset HF_HUB_OFFLINE, or run `hf download {part.hub_id} --repo-type dataset`. To download "
        f"only README.md and the files of the split, name them with --include. Or use a file with the rows: --from "
        f"{name}=FILE (.json, .jsonl or .parquet).",
    )
    try:
        folder = Path(snapshot_download(part.hub_id, repo_type="dataset", local_files_only=True))
    except LocalEntryNotFoundError as error:
        raise missing from error
    card = (folder / _CARD).read_text(encoding="utf-8") if (folder / _CARD).exists() else ""
    present = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    paths = files_of_split(name, part, card, present)
    if not paths:
        raise missing
    files = [(path, (folder / path).stat().st_size, folder / path) for path in paths]
    return _complete(part, folder.name, files)


def files_of_split(name: str, part: HubSet, card: str, paths: Iterable[str]) -> list[str]:
    """Returns the paths of a data set that belong to a split, in order.

    The key `configs` in the card lists the files of each split. Without the key `configs`, words in the paths, such as
    `test`, name the splits. A path that names no split belongs to the split train.

    Args:
        name: the name of the source, for messages.
        part: the data set, its config and its split.
        card: the README.md of the data set.
        paths: the paths of all files in the data set.

    Raises:
        UserError: the data set has no such config or split.
    """
    from huggingface_hub import DatasetCard

    visible = [path for path in sorted(paths) if _may_be_data(path)]
    metadata: Any = DatasetCard(card, ignore_metadata_errors=True).data if card else {}
    configs = {each.get("config_name", "default"): each for each in metadata.get("configs") or ()}
    default = next((each for each, config in configs.items() if config.get("default")), "default")
    if configs and default not in configs and len(configs) == 1:
        default = next(iter(configs))
    config = configs.get(
        part.config or default, {} if not configs and part.config in (None, "default") else None
    )
    if config is None:
        known = ", ".join(configs) or "none in its card"
        raise _changed(name, f"{part.hub_id} has no config {part.config or default}; it has {known}")
    folder = str(PurePosixPath(config.get("data_dir") or ""))
    inside = [path for path in visible if folder == "." or PurePosixPath(path).is_relative_to(folder)]
    listed = config.get("data_files")
    splits = _splits_of(listed, folder) if listed else _named_splits(inside, folder)
    if part.split not in splits:
        raise _changed(name, f"{part.hub_id} has no split {part.split}; it has {', '.join(splits) or 'none'}")
    return [path for path in inside if any(_matches(path, pattern) for pattern in splits[part.split])]


def _may_be_data(path: str) -> bool:
    """Whether a file may contain rows. The result is False for hidden files and for files that only describe the
    data."""
    place = PurePosixPath(path)
    return place.name not in _ABOUT_DATA and not any(each.startswith((".", "__")) for each in place.parts)


def _splits_of(listed: Any, folder: str) -> dict[str, list[str]]:
    """Returns the file patterns of each split, from the key `data_files` of a card.

    The patterns on the card are relative to `folder`.
    """
    if isinstance(listed, dict) and "path" not in listed:
        listed = [{"split": split, "path": path} for split, path in listed.items()]
    splits: dict[str, list[str]] = {}
    for each in [listed] if isinstance(listed, str | dict) else listed:
        split, path = ("train", each) if isinstance(each, str) else (each.get("split", "train"), each["path"])
        patterns = [path] if isinstance(path, str) else path
        splits.setdefault(split, []).extend(str(PurePosixPath(folder, pattern)) for pattern in patterns)
    return splits


def _named_splits(paths: list[str], folder: str) -> dict[str, list[str]]:
    """Returns a dict from each split to its data files. Words in a file's path below `folder` name the split."""
    data = [path for path in paths if PurePosixPath(path).suffix in _DATA]
    split_of = {path: _split_in(str(PurePosixPath(path).relative_to(folder))) for path in data}
    splits = {split: [path for path in data if (split_of[path] or "train") == split] for split in _SPLITS}
    return {split: [f"/{path}" for path in files] for split, files in splits.items() if files}


def _split_in(path: str) -> str | None:
    """Returns the split that a path names. Returns None if the path names no split."""
    words = re.split(r"[^a-z]+", path.lower())
    return next((split for split, names in _SPLITS.items() if any(name in words for name in names)), None)


def _matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern of the hub.

    In a pattern, `*` matches within one folder, `**` matches across folders, and `{a,b}` matches `a` or `b`.
    """
    if choice := _CHOICE.search(pattern):
        before, after = pattern[: choice.start()], pattern[choice.end() :]
        return any(_matches(path, f"{before}{each}{after}") for each in choice[1].split(","))
    if "**" in pattern:
        return fnmatchcase(path, pattern.replace("**/", "*"))
    return PurePosixPath("/", path).match(str(PurePosixPath("/", pattern)))


def _changed(name: str, message: str) -> UserError:
    return UserError(
        f"{name}: {message}",
        "The data set has changed on the hub. Use a file with its rows: "
        f"--from {name}=FILE (.json, .jsonl or .parquet).",
    )


def _complete(part: HubSet, revision: str, files: Sequence[tuple[str, int, Path | None]]) -> HubFiles:
    """Returns the files, after a check that no file of a numbered series is missing.

    Raises UserError if a file of a series is missing.
    """
    series = Counter(match.groups() for name, _, _ in files if (match := _NUMBERED.match(name)))
    for (_, total), count in series.items():
        if count != int(total):
            raise UserError(
                f"{part}: only {count} of its {int(total)} files are there",
                f"Run `hf download {part.hub_id} --repo-type dataset` to download the others.",
            )
    return HubFiles(part, revision, tuple(HubFile(part.hub_id, revision, *each) for each in files))


@contextmanager
def _connected(hub_id: str) -> Iterator[None]:
    """Raise Failure if the hub stops answering during the `with` block."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (httpx.TransportError, HfHubHTTPError) as error:
        cause = _cause(error)
        raise Failure(
            f"the dataset hub did not send {hub_id}: {cause}",
            "Run the same command again. The preparation continues after the last finished step.",
        ) from error


@dataclass(frozen=True)
class Demand:
    """The amount of data that a source needs."""

    read: int
    """Bytes to read, over the network or from the cache."""
    download: int
    """Bytes to download to the hub's cache."""


def check_disk(demands: Sequence[Demand], output: Path) -> None:
    """Check that the disks have space for downloads in the hub's cache and for rows in the folder `output`.

    The size of the rows is estimated as the number of bytes to read.

    Raises:
        UserError: a disk has too little free space.
    """
    from huggingface_hub import constants

    needs: dict[int, tuple[Path, int]] = {}
    for folder, size in (
        (existing_folder(Path(constants.HF_HUB_CACHE)), sum(each.download for each in demands)),
        (existing_folder(output), sum(each.read for each in demands)),
    ):
        device = folder.stat().st_dev
        needs[device] = (folder, needs.get(device, (folder, 0))[1] + size)
    for folder, size in needs.values():
        free = shutil.disk_usage(folder).free
        if size > free:
            raise UserError(
                f"not enough disk space: {folder} needs about {size_text(size)}, and {size_text(free)} are free",
                "Free disk space, or use another disk: --output sets the folder of the rows, and HF_HOME sets the "
                "folder of the hub's cache.",
            )


def size_text(size: float) -> str:
    """Returns a number of bytes as text, such as 37.0 MB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def used_share(opened: Any, columns: Sequence[str]) -> float:
    """Returns the share of a parquet file's bytes that these columns take up."""
    used = total = 0
    for group in range(opened.metadata.num_row_groups):
        row_group = opened.metadata.row_group(group)
        for at in range(row_group.num_columns):
            chunk = row_group.column(at)
            total += chunk.total_compressed_size
            used += chunk.total_compressed_size * (chunk.path_in_schema.partition(".")[0] in columns)
    return used / max(total, 1)
