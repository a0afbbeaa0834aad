"""Makes the random Qwen3 that is served and trained, with a tokenizer as large as its vocabulary."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

from rstar2.doctor.gpu_check.check import NotRun, Settings
from rstar2.doctor.gpu_check.sizes import SIZES, TINY, Size, planned_tensors
from rstar2.doctor.gpu_check.tools.device import free_bytes
from rstar2.files import whole_folder
from rstar2.machine import GIB

CONTEXT = 2048
"""The model's context in tokens."""
SEED = 1
CONVERSATIONS = 400
"""The tokenizer is trained on this many conversations."""
TRAINED: tuple[Size, ...] = SIZES[:2]
"""Sizes of models that the checks train. Each checkpoint of a larger size would take minutes and tens of GB."""
TOKENS = 4096
"""Number of tokens in a micro-batch."""
SHARE = 0.5
"""The trainer's share of the GPU's free memory. The engine uses part of the remaining memory."""
CHECKPOINTS = 4
"""The disk must have room for this many checkpoints: two RL checkpoints and one SFT checkpoint. The exported models
    take as much space as one more checkpoint."""
BYTES_OF_CHECKPOINT = 12
"""Number of bytes in a checkpoint for each parameter: the weight and two moments in fp32."""


def trained_size(settings: Settings) -> Size:
    """Returns the largest model size that fits this device and the disk. Raises NotRun if no size fits."""
    if settings.device == "cpu":
        return TINY
    memory, disk = SHARE * free_bytes(settings), shutil.disk_usage(settings.work).free
    for size in reversed(TRAINED):
        needed = CHECKPOINTS * BYTES_OF_CHECKPOINT * size.shape.parameters
        if planned_tensors(size, "cuda", TOKENS, 3) <= memory and needed <= disk:
            return size
    raise NotRun(
        f"{memory / SHARE / GIB:.1f} GiB are free on the GPU and {disk / GIB:.1f} GiB on the disk, too few for the "
        "smallest model",
        "End other programs on the GPU, or give a folder on a larger disk with --output.",
    )


def random_model(settings: Settings) -> Path:
    """Returns the folder of the random model. The first call makes the model."""
    folder = settings.work / "model"
    if folder.is_dir():
        return folder
    from rstar2.data import builtin
    from rstar2.demo.tiny import TinyModel, make_tiny_model

    size = trained_size(settings)
    tiny = TinyModel(
        hidden=TINY.hidden,
        layers=TINY.layers,
        heads=TINY.heads,
        vocab=TINY.vocab,
        spread=TINY.spread,
        context=CONTEXT,
    )
    conversations = islice(builtin.traces(SEED, CONVERSATIONS, {}), CONVERSATIONS)
    with whole_folder(folder) as part:
        make_tiny_model(part, tiny, conversations, builtin.FORMAT, SEED)
        if size != TINY:
            _fill_vocabulary(part / "tokenizer.json", size.vocab)
            _write_weights(part, size)
    return folder


def _fill_vocabulary(path: Path, size: int) -> None:
    """Add unused tokens, so that every id that a model of this size can generate has a text."""
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    vocabulary |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    first = 1 + max(vocabulary.values())
    vocabulary |= {f"<unused{number}>": number for number in range(first, size)}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def _write_weights(folder: Path, size: Size) -> None:
    """Replace the tiny model's weights and config with the weights and config of a random bf16 model of this size."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(folder)
    config.update(
        {**size.config, "initializer_range": size.spread, "layer_types": ["full_attention"] * size.layers}
    )
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    model.save_pretrained(folder)
