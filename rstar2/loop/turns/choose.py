"""Chooses the format of a model, and creates its codec."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import UserError
from rstar2.files import read_json
from rstar2.loop.formats.families import FAMILIES
from rstar2.loop.formats.format import (
    DEFAULT_FORMAT,
    FORMAT_FILE,
    TEMPLATE_FORMAT,
    Format,
    default_format,
    read_format,
)
from rstar2.loop.turns.check import check_round_trip
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.families import FamilyCodec, family_of
from rstar2.loop.turns.template import TemplateCodec
from rstar2.model_hub import check_on_hub
from rstar2.runs import changed_keys

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.*", "tekken.json")
"""Patterns for the names of tokenizer files. A model's folder contains at least one file that matches one of them."""


def codec_for(tokenizer: Any, fmt: Format | None = None, source: str = DEFAULT_FORMAT) -> ChatCodec:
    """Create the codec of a Hugging Face tokenizer and a format, and test it by a round trip.

    Args:
        tokenizer: the tokenizer.
        fmt: the format. The default is rstar2's own format.
        source: where the format comes from, for messages.

    Raises:
        UserError: the tokenizer does not fit the format (see `TemplateCodec` and `FamilyCodec`), or the round trip
            failed (see `check_round_trip`).
    """
    fmt = fmt or default_format()
    codec = (
        TemplateCodec(tokenizer, fmt, source) if fmt.family is None else FamilyCodec(tokenizer, fmt, source)
    )
    check_round_trip(codec)
    return codec


@dataclass(frozen=True)
class FormatChoice:
    """The user's choice of a format for a model. Raises UserError if `forced` is set without a format."""

    named: str | None = None
    """Name or file of a format, see `read_format`. If `named` is None, the model's own format is used."""
    forced: bool = False
    """Whether to use the format even if the model has a different format."""

    def __post_init__(self) -> None:
        if self.forced and self.named is None:
            raise UserError(
                "--force-format needs --format", "Add --format with the name or file of a format."
            )


MODELS_OWN = FormatChoice()


def load_codec(model: str | Path, choice: FormatChoice = MODELS_OWN) -> ChatCodec:
    """Create the codec of a model folder or hub id, in the model's format.

    The model's format is the first of the following formats that exists:

    1. the format in the model's format file,
    2. the format of the family whose turns the model's chat template writes,
    3. the model's chat template with rstar2's tags,
    4. the default format of rstar2.

    A format in `choice` must not differ from the model's format, unless `choice` is forced.

    Raises:
        UserError: the tokenizer cannot be loaded, the model's format file and chat template disagree, the chosen format
            differs from the model's format, or the format does not work (see `read_format` and `codec_for`).
    """
    if isinstance(model, Path) and not model.is_dir():
        hint = "Give the folder that holds config.json and the weights."
        raise UserError(f"no model folder at {model}", hint)
    return codec_of(model, load_tokenizer(model), choice)


def load_chat_codec(model: str | Path, choice: FormatChoice = MODELS_OWN) -> ChatCodec:
    """Create the codec of a model whose requests bring their own tools.

    The model's format needs no tools. If the model's own format does not work, for example because its chat template
    drops tools, the format `no-tools` is used instead.

    Raises:
        UserError: a format is chosen and does not work, or `no-tools` does not work either (see `load_codec`).
    """
    try:
        return load_codec(model, choice)
    except UserError as error:
        if choice.named is not None:
            raise
        try:
            return load_codec(model, FormatChoice("no-tools"))
        except UserError:
            # The user did not choose no-tools, so the first error explains more.
            raise error from None


def codec_of(model: str | Path, tokenizer: Any, choice: FormatChoice = MODELS_OWN) -> ChatCodec:
    """Create the codec of a model whose tokenizer is already loaded, see `load_codec`."""
    own, source = model_format(model, tokenizer)
    named = choice.named
    if named is None:
        return codec_for(tokenizer, own, source)
    chosen = named_format(named, own, source)
    differing = differences(own, chosen, source)
    if differing and not choice.forced:
        raise UserError(
            f"{model} has its own format ({source}), which differs from {named} in: {', '.join(differing)}",
            f"Omit --format to use the model's own format. In chat, eval, serve and format show, --force-format uses "
            f"{named} despite the differences, and the results name that format.",
        )
    return codec_for(tokenizer, chosen, f"{named}, forced" if differing else named)


def load_tokenizer(model: str | Path) -> Any:
    """Returns the tokenizer of a model folder or hub id. Raises UserError if the tokenizer cannot be loaded.

    If the hub cannot be reached, there are no retries.
    """
    from transformers import AutoTokenizer

    check_tokenizer(model)
    if not Path(model).is_dir():
        check_on_hub(str(model), "tokenizer_config.json", "tokenizer.json", "tokenizer.model")
    try:
        return AutoTokenizer.from_pretrained(str(model))
    # For damaged files the libraries raise many types of exceptions, including types of their own.
    except Exception as error:
        raise no_tokenizer(model, " ".join(str(error).split())[:200] or type(error).__name__) from error


def check_tokenizer(model: str | Path) -> None:
    """Raise UserError if a folder has no tokenizer files. transformers would create an empty tokenizer from such a
    folder."""
    folder = Path(model)
    if folder.is_dir() and not any(any(folder.glob(name)) for name in _TOKENIZER_FILES):
        raise no_tokenizer(model, "it has no tokenizer")


def no_tokenizer(model: str | Path, why: str) -> UserError:
    """Returns the error for a model whose tokenizer cannot be loaded."""
    hint = f"The folder needs tokenizer.json and tokenizer_config.json beside the weights ({why})."
    return UserError(f"cannot load a tokenizer from {model}", hint)


def model_format(model: str | Path, tokenizer: Any) -> tuple[Format, str]:
    """Returns a model's own format, and where it comes from.

    Raises:
        UserError: the model's format file and its chat template disagree, or a family cannot be tried (see
            `family_of`).
    """
    template, record = _own_template(tokenizer), _format_file(model)
    if record is not None:
        stored = read_format(str(record))
        if template is not None and template.strip() != stored.template.strip():
            raise UserError(
                f"{model}: the chat template of the tokenizer differs from the one in {FORMAT_FILE}",
                f"Remove {FORMAT_FILE} to use the tokenizer's template, or copy both again from the trained model.",
            )
        return stored, FORMAT_FILE
    if template is None:
        return default_format(), DEFAULT_FORMAT
    fmt = read_format(TEMPLATE_FORMAT, template)
    family = family_of(tokenizer, template, _model_types(model))
    if family is None:
        return fmt, "its own chat template"
    return _with_family(fmt, *family), "its own chat template"


def named_format(named: str, own: Format, source: str) -> Format:
    """Read the format `named` for a model. `own` is the model's own format, and `source` says where `own` comes from.

    If `named` is a format of the model's own family and sets no options, the returned format has the options of the
    model's own format.
    """
    # A model without a chat template has an empty template in a family, not the template of the default format.
    fmt = read_format(named, "" if named in FAMILIES and source == DEFAULT_FORMAT else own.template)
    if fmt.family is not None and fmt.family == own.family and not fmt.family_options:
        return fmt.model_copy(update={"family_options": own.family_options})
    return fmt


def _with_family(fmt: Format, family: str, options: dict[str, Any]) -> Format:
    calls = 1 if FAMILIES[family].one_call else fmt.calls_per_turn
    return fmt.model_copy(update={"family": family, "family_options": options, "calls_per_turn": calls})


def _model_types(model: str | Path) -> list[str]:
    """Returns the `model_type` of a model, and of the text model inside a multimodal model. The list is empty if the
    model has no config.json."""
    from transformers import PreTrainedConfig

    if Path(model).is_dir():
        config = read_json(Path(model) / "config.json") or {}
    else:
        try:
            config, _ = PreTrainedConfig.get_config_dict(str(model))
        except OSError:  # There is no config.json, or it cannot be fetched.
            return []
    parts = (config, config.get("text_config") or {})
    return [str(part["model_type"]) for part in parts if part.get("model_type")]


def _own_template(tokenizer: Any) -> str | None:
    """Returns a tokenizer's chat template.

    If the tokenizer has several templates, the template for tool use is preferred.
    """
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use", template.get("default"))
    return None if template is None else str(template)


def _format_file(model: str | Path) -> Path | None:
    """Returns the path of a model's format file. For a hub id the file is fetched into the cache of the hub."""
    if Path(model).is_dir():
        record = Path(model) / FORMAT_FILE
        return record if record.exists() else None
    from transformers.utils import cached_file

    cached = cached_file(
        str(model),
        FORMAT_FILE,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if cached is None else Path(cached)


def differences(own: Format, other: Format, source: str) -> list[str]:
    """Returns the keys in which the format `other` differs from the model's own format `own`, which comes from
    `source`.

    The time and memory limits of calls may differ, because the user may choose them. For a model without a format file,
    only the family and the template are compared.
    """
    if source == FORMAT_FILE:
        free: Any = {"examples": True, "limits": {"seconds", "memory_mb"}}
        return changed_keys(own.model_dump(exclude=free), other.model_dump(exclude=free))
    if None not in (own.family, other.family) and own.family != other.family:
        return ["family"]
    return [] if source == DEFAULT_FORMAT or own.template == other.template else ["template"]
