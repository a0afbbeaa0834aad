"""What training starts from, checked before anything is made."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from rstar2.data.parquet import read_rows, write_parquet
from rstar2.errors import UserError
from rstar2.files import read_objects
from rstar2.prompts import CHAT_TEMPLATE, FORMAT_FILE, load_codec, save_format

_ROLES = frozenset({"system", "user", "assistant", "tool"})


def digest(path: Path) -> str:
    """SHA-256 of a file, so that a run is not resumed with another one."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_model(model: Path) -> None:
    """Refuse a folder that training could not start from.

    Raises:
        UserError: no folder, no config.json, no weights, or no ChatML tokenizer.
    """
    if not model.is_dir():
        raise UserError(f"no model folder at {model}", "Download the model and give its folder with --model.")
    if not (model / "config.json").is_file():
        raise UserError(f"{model} has no config.json", "Give the folder of a Hugging Face model.")
    if not any(model.glob("*.safetensors")) and not any(model.glob("*.bin")):
        raise UserError(f"{model} has no weights", "Give the folder that holds the .safetensors files too.")
    load_codec(model)


def with_our_template(model: Path, folder: Path) -> Path:
    """A copy of the model's folder, by links, with our chat template in its tokenizer.

    VERL's SFT renders conversations with the tokenizer's own template; rollouts use ours. They must agree.
    """
    if folder.is_dir():
        return folder
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    codec = load_codec(model)
    codec.tokenizer.chat_template = CHAT_TEMPLATE
    codec.tokenizer.save_pretrained(part)
    save_format(codec.format, part)
    for file in model.iterdir():
        if file.is_file() and not (part / file.name).exists() and file.name != FORMAT_FILE:
            (part / file.name).symlink_to(file.resolve())
    part.rename(folder)
    return folder


def read_conversations(path: Path) -> list[dict[str, Any]]:
    """Read SFT conversations from parquet or JSON lines.

    Raises:
        UserError: the file is missing, or a row is not a conversation; the message names row and fault.
    """
    hint = "A row is {messages: [{role, content}, …]}."
    is_parquet = path.suffix == ".parquet"
    rows = read_rows(path, "messages") if is_parquet else [row for _, row in read_objects(path, hint)]
    if not rows:
        raise UserError(f"{path} is empty", "Give at least one conversation.")
    for number, row in enumerate(rows, 1):
        fault = _fault(row.get("messages"))
        if fault:
            raise UserError(f"{path}, row {number}: {fault}", hint)
    return rows


def write_conversations(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write conversations as parquet for VERL's SFT dataset, only the `messages` column.

    An assistant message without a thought gets an empty one: generation always starts inside `<reason>`,
    and the trainer masks what generation is given.
    """
    write_parquet(path, [{"messages": [_reasoned(m) for m in row["messages"]]} for row in rows])


def _reasoned(message: dict[str, Any]) -> dict[str, str]:
    role, content = message["role"], message["content"]
    if role == "assistant" and not content.startswith("<reason>"):
        content = f"<reason></reason>\n{content}"
    return {"role": role, "content": content}


def _fault(messages: Any) -> str | None:
    """What is wrong with a row's messages, if anything is."""
    if not isinstance(messages, list) or not messages:
        return "no messages"
    for place, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return f"message {place} has no text content"
        if message.get("role") not in _ROLES:
            return f"message {place} has role {message.get('role')!r}"
    if all(message["role"] != "assistant" for message in messages):
        return "no assistant message to learn from"
    return None
