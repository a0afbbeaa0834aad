"""What is measured: an engine, its codec, and words that identify both in the results."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.engines.base import Engine
from rstar2.engines.folder import open_folder
from rstar2.errors import UserError
from rstar2.prompts import ChatCodec, load_codec

_WEIGHTS = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model")
_PACKAGES = ("rstar2", "transformers", "torch", "vllm", "datasets", "sympy", "numpy", "scipy")


@dataclass(frozen=True)
class Target:
    """Which model to measure, as a user names it: a folder, a server, or the oracle."""

    model: Path | None = None
    url: str | None = None
    model_name: str | None = None
    oracle: bool = False

    def __post_init__(self) -> None:
        if not (self.model or self.url or self.oracle):
            raise UserError(
                "no model to measure", "Give --model DIR, --url URL of a vLLM server, or --oracle."
            )
        if self.oracle and (self.model or self.url):
            raise UserError("--oracle stands in for a model; it goes with neither --model nor --url")
        if self.model is not None and not self.model.is_dir():
            raise UserError(
                f"no model folder at {self.model}", "Give the folder that holds config.json and the weights."
            )
        if self.model_name and not self.url:
            raise UserError("--model-name names a model on a server", "Give the server with --url.")

    @property
    def short_name(self) -> str:
        """A word for folder names and titles."""
        if self.oracle:
            return "oracle"
        named = self.model_name or (self.model.resolve().name if self.model else self.url) or "model"
        return named.rstrip("/").rpartition("/")[2]


@dataclass(frozen=True)
class Opened:
    """A target, ready to generate."""

    engine: Engine
    codec: ChatCodec
    identity: dict[str, Any]
    """What goes into results.json as `model`; a run resumed with another one is refused."""

    @classmethod
    def of(cls, engine: Engine, codec: ChatCodec, **identity: Any) -> Opened:
        """Add the words around a problem to the identity: they decide the result as the weights do."""
        words = codec.format.model_dump_json().encode()
        return cls(engine, codec, {**identity, "prompt_sha256": hashlib.sha256(words).hexdigest()})


def open_target(target: Target, problems: Sequence[Problem], in_flight: int) -> Opened:
    """Load or connect to the model.

    Args:
        problems: those it will be asked; only the oracle looks at them.

    Raises:
        UserError: there is no such model, no tokenizer with it, or what would run it is not installed.
    """
    if target.oracle:
        from rstar2.engines.oracle import OracleEngine, byte_codec

        plain = byte_codec()
        golds = {problem.problem: problem.answer for problem in problems}
        return Opened.of(OracleEngine(golds, plain), plain, name="oracle")
    if target.url is not None:
        return _served(target, target.url)
    assert target.model is not None
    engine, codec = open_folder(target.model, in_flight)
    return Opened.of(engine, codec, name=target.short_name, sha256=model_hash(target.model))


def _served(target: Target, url: str) -> Opened:
    from rstar2.engines.vllm import VLLMEngine

    name, root = _served_model(url, target.model_name)
    codec = load_codec(target.model or (Path(root) if Path(root).is_dir() else root))
    folder = target.model or (Path(root) if Path(root).is_dir() else None)
    engine = VLLMEngine(url, name, stop_token_ids=[codec.end_id], patience_s=5.0)
    digest = {"sha256": model_hash(folder)} if folder is not None else {}
    return Opened.of(engine, codec, name=name, root=root, **digest)


def _served_model(url: str, wanted: str | None) -> tuple[str, str]:
    """The served model's name and where the server loaded it from."""
    import httpx

    base = url.rstrip("/").removesuffix("/v1")
    try:
        answer = httpx.get(f"{base}/v1/models", timeout=10.0)
        answer.raise_for_status()
        cards = {str(card["id"]): card for card in answer.json()["data"]}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"no vLLM server answers at {url}: {str(error) or type(error).__name__}",
            "`rstar2 serve MODEL` starts one.",
        ) from error
    name = wanted or (next(iter(cards)) if len(cards) == 1 else None)
    if name not in cards or name is None:
        held = ", ".join(cards) or "no model"
        raise UserError(
            f"the server at {url} holds {held}{f', not {wanted}' if wanted else ''}",
            "Name one of them with --model-name.",
        )
    return name, str(cards[name].get("root") or name)


def model_hash(folder: Path) -> str:
    """SHA-256 over the names and contents of a model folder's weights, configuration and tokenizer."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that take part in a measurement, where installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
