"""Finds and opens the files of a set on the dataset hub: only those of the split that is used.

Of a parquet file, only the columns that are used are read, in ranges over the network. Any other file is downloaded
into the hub's cache. With `HF_HUB_OFFLINE=1` the files are those in that cache.
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
"""How long the hub may take to answer the first request about a set."""
_CARD = "README.md"
_DATA = (".json", ".jsonl", ".parquet")
_ABOUT_DATA = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})
"""Files that the library datasets writes beside the data."""
_SPLITS = {
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "val", "dev"),
    "train": ("train", "training"),
}
"""The splits that paths may name, and the words for them."""
_CHOICE = re.compile(r"\{([^{}]*)\}")
"""The alternatives of a pattern: `{a,b}`."""
_NUMBERED = re.compile(r"^(.*)-\d+-of-(\d+)\.\w+$")
"""The name of a file that is one of several: `cot-00000-of-00144.parquet`."""


class _Retries(logging.Filter):
    """Says once for each request that the hub's library sends again why it does, in place of two lines per try."""

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
        record.msg = (
            f"the dataset hub does not answer ({self._cause}): the request is sent again, up to 5 times"
        )
        record.args = ()
        return "[Retry 1/" in message


logging.getLogger("huggingface_hub.utils._http").addFilter(_Retries())
# A set's card need not have metadata.
logging.getLogger("huggingface_hub.repocard").setLevel(logging.ERROR)


@dataclass(frozen=True)
class HubFile:
    """A file of a set, at one revision."""

    hub_id: str
    revision: str
    name: str
    """Its path in the set's repository."""
    size: int
    local: Path | None
    """The file in the hub's cache; None if it is not there."""

    def __str__(self) -> str:
        return f"{self.hub_id}/{self.name}"

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def is_downloaded_whole(self) -> bool:
        """Whether reading it downloads the whole file into the cache."""
        return self.local is None and self.suffix != ".parquet"

    def path(self) -> Path:
        """The whole file in the hub's cache, downloaded if it is not there."""
        from huggingface_hub import hf_hub_download

        if self.local is not None:
            return self.local
        with _connected(self.hub_id):
            return Path(hf_hub_download(self.hub_id, self.name, repo_type="dataset", revision=self.revision))

    @contextmanager
    def parquet(self) -> Iterator[pq.ParquetFile]:
        """The open parquet file. Nothing but what is read of it comes over the network."""
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
    """The files of one split, in order."""

    part: HubSet
    revision: str
    files: tuple[HubFile, ...]


def located(name: str, part: HubSet, gated: bool = False) -> HubFiles:
    """The files of a set's split, without reading them.

    Args:
        name: what messages call the source.
        part: the set, its config and its split.
        gated: whether the set's terms must be accepted first.

    Raises:
        UserError: the hub cannot be reached, the set is gated or unknown, or has no such split.
    """
    try:
        return _located(name, part)
    except UserError:
        raise
    # The hub's libraries raise anything from OSError to their own types.
    except Exception as error:
        files = f"give its rows as a file: --from {name}=FILE (.json, .jsonl or .parquet)."
        raise refusal(name, part.hub_id, gated, files, error) from error


def refusal(name: str, hub_id: str, gated: bool, files: str, error: Exception) -> UserError:
    """The UserError for an error of the hub's libraries, which names what a user can do.

    Args:
        name: what the message calls the source.
        hub_id: the set.
        gated: whether the set's terms must be accepted first.
        files: how to do without the hub, as a sentence that begins in lower case.
        error: the error.
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
            f"{name}: the hub has no set {hub_id}, or it is private",
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
    """What the hub says of a set: its revision and its files. It is asked once, without retries.

    Raises:
        httpx.TransportError: the hub cannot be reached.
        huggingface_hub.errors.HfHubHTTPError: the set is unknown, or this account has no access to its files.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    info = api.dataset_info(hub_id, timeout=_ANSWER_S, files_metadata=True)
    if info.gated:
        api.auth_check(hub_id, repo_type="dataset")
    return info


@cache
def _located(name: str, part: HubSet) -> HubFiles:
    """As `located`, with the errors of the hub's libraries."""
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE:
        return _in_cache(name, part)
    info = set_info(part.hub_id)
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    card = ""
    if _CARD in sizes:
        # Of the branch, not of the revision, so that the cache can be used offline by the branch's name.
        card = Path(hf_hub_download(part.hub_id, _CARD, repo_type="dataset")).read_text(encoding="utf-8")
    files = []
    paths = files_of_split(name, part, card, sizes)
    if not paths:
        raise _changed(name, f"{part.hub_id} has no file that the patterns of {part} in its card match")
    for path in paths:
        cached = try_to_load_from_cache(part.hub_id, path, revision=info.sha, repo_type="dataset")
        files.append((path, sizes[path], Path(cached) if isinstance(cached, str) else None))
    return _complete(part, str(info.sha), files)


def _in_cache(name: str, part: HubSet) -> HubFiles:
    """The files of the split that the hub's cache holds; a UserError if there are none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    missing = UserError(
        f"{name}: HF_HUB_OFFLINE is set, and the hub's cache has no files of {part}",
        f"With a network, run `hf download {part.hub_id} --repo-type dataset`, with --include for README.md and the "
        f"split's files alone; or unset HF_HUB_OFFLINE; or give the rows as a file: --from {name}=FILE (.json, .jsonl "
        "or .parquet).",
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
    """Those of a set's paths that hold the split, in order.

    Args:
        name: what messages call the source.
        part: the set, its config and its split.
        card: the set's README.md. Its `configs` say which files a split has. Without them, the words in the paths do,
            and a path without such a word belongs to the split train.
        paths: the files of the set.

    Raises:
        UserError: the set has no such config or split.
    """
    from huggingface_hub import DatasetCard

    visible = [path for path in sorted(paths) if _may_be_data(path)]
    about: Any = DatasetCard(card, ignore_metadata_errors=True).data if card else {}
    configs = {each.get("config_name", "default"): each for each in about.get("configs") or ()}
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
    """Whether a file of a set may hold rows: it is neither hidden nor one that only describes the data."""
    place = PurePosixPath(path)
    return place.name not in _ABOUT_DATA and not any(each.startswith((".", "__")) for each in place.parts)


def _splits_of(listed: Any, folder: str) -> dict[str, list[str]]:
    """The patterns of each split's files, from `data_files` of a set's card, which are relative to the folder."""
    if isinstance(listed, dict) and "path" not in listed:
        listed = [{"split": split, "path": path} for split, path in listed.items()]
    splits: dict[str, list[str]] = {}
    for each in [listed] if isinstance(listed, str | dict) else listed:
        split, path = ("train", each) if isinstance(each, str) else (each.get("split", "train"), each["path"])
        patterns = [path] if isinstance(path, str) else path
        splits.setdefault(split, []).extend(str(PurePosixPath(folder, pattern)) for pattern in patterns)
    return splits


def _named_splits(paths: list[str], folder: str) -> dict[str, list[str]]:
    """The data files of each split, by the words in their paths below the folder."""
    data = [path for path in paths if PurePosixPath(path).suffix in _DATA]
    named = {path: _split_in(str(PurePosixPath(path).relative_to(folder))) for path in data}
    splits = {split: [path for path in data if (named[path] or "train") == split] for split in _SPLITS}
    return {split: [f"/{path}" for path in files] for split, files in splits.items() if files}


def _split_in(path: str) -> str | None:
    """The split that a path names; None if it names none."""
    words = re.split(r"[^a-z]+", path.lower())
    return next((split for split, names in _SPLITS.items() if any(name in words for name in names)), None)


def _matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern of the hub.

    In it, `*` stays within a folder, `**` does not, and `{a,b}` is a choice.
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
        f"The set has changed. Give its rows as a file: --from {name}=FILE (.json, .jsonl or .parquet).",
    )


def _complete(part: HubSet, revision: str, found: Sequence[tuple[str, int, Path | None]]) -> HubFiles:
    """The files; a UserError if one of a numbered series is missing."""
    series = Counter(match.groups() for name, _, _ in found if (match := _NUMBERED.match(name)))
    for (_, total), count in series.items():
        if count != int(total):
            raise UserError(
                f"{part}: only {count} of its {int(total)} files are there",
                f"Run `hf download {part.hub_id} --repo-type dataset` to complete them.",
            )
    return HubFiles(part, revision, tuple(HubFile(part.hub_id, revision, *each) for each in found))


@contextmanager
def _connected(hub_id: str) -> Iterator[None]:
    """A Failure if the hub stops answering within the block."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (httpx.TransportError, HfHubHTTPError) as error:
        cause = _cause(error)
        raise Failure(
            f"the dataset hub did not send {hub_id}: {cause}",
            "Start the same command again: it continues after the last finished step.",
        ) from error


@dataclass(frozen=True)
class Demand:
    """What a source needs of the hub and of the disk."""

    read: int
    """Bytes that are read, over the network or from the cache."""
    download: int
    """Bytes among them that are stored in the hub's cache."""


def check_disk(demands: Sequence[Demand], output: Path) -> None:
    """Check the free disk for downloads in the hub's cache, and for rows in the folder `output`.

    Rows are estimated at the bytes that are read for them.

    Raises:
        UserError: a disk has too little room.
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
                f"not enough disk: about {size_text(size)} are needed at {folder}, and {size_text(free)} are free",
                "Make room, or use another disk: --output for the rows, HF_HOME for the hub's cache.",
            )


def size_text(size: float) -> str:
    """Bytes in words: 37.0 MB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def used_share(opened: Any, columns: Sequence[str]) -> float:
    """The share of a parquet file's bytes that these columns take."""
    used = total = 0
    for group in range(opened.metadata.num_row_groups):
        about = opened.metadata.row_group(group)
        for at in range(about.num_columns):
            chunk = about.column(at)
            total += chunk.total_compressed_size
            used += chunk.total_compressed_size * (chunk.path_in_schema.partition(".")[0] in columns)
    return used / max(total, 1)
