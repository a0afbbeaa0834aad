"""Runs one step of `rstar2 sft`, and compares its loss with the loss that transformers computes in fp32."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, Settings
from rstar2.doctor.gpu_check.tools import commands
from rstar2.doctor.gpu_check.tools.device import torch_device

CONVERSATIONS = 8
MAX_TOKENS = 512
MOST_OFF = 0.02
"""Maximum relative difference between the loss of `rstar2 sft` and the loss that transformers computes."""


def run(settings: Settings, measurements: Measurements) -> None:
    from rstar2.doctor.gpu_check.tools import training
    from rstar2.doctor.gpu_check.tools.model import random_model
    from rstar2.model_shape import read_shape
    from rstar2.runs import load_config
    from rstar2.train.estimate.memory import sft_memory
    from rstar2.train.recipe import SftRecipe
    from rstar2.train.records.steps import sft_metrics

    torch_device(settings)
    model, folder, data = random_model(settings), settings.work / "sft", settings.work / "conversations.jsonl"
    lengths = _write_conversations(data, model)
    words = training.sft_words(settings, folder, data, CONVERSATIONS, MAX_TOKENS)
    commands.run(settings, CHECK.name, words)
    [step] = sft_metrics(folder).values()
    loss, expected = float(step["train/loss"]), _expected_loss(settings, model, data)
    measurements.add("loss of the trainer", loss, "nats")
    measurements.add("loss of transformers in fp32", expected, "nats")
    measurements.add("norm of the gradient", float(step["train/grad_norm"]))
    recipe = SftRecipe.model_validate(load_config(folder)[1]["recipe"])
    planned = sft_memory(read_shape(model), recipe, lengths)
    training.add_memory(
        measurements, settings, step["perf/max_memory_allocated_gb"], planned.expected_update_total
    )
    shutil.rmtree(folder / "checkpoints")
    if not abs(loss / expected - 1) <= MOST_OFF:
        raise CheckFailed(
            f"the trainer's loss is {loss:.4f}, but transformers in fp32 says {expected:.4f}",
            "See the check `attention`, and try another hardware.attention.",
        )
    measurements.summary = f"loss {loss:.4f}, transformers in fp32 {expected:.4f}"


def _write_conversations(path: Path, model: Path) -> list[int]:
    """Write conversations with tool calls. Returns the number of tokens of each conversation."""
    from rstar2.data import builtin
    from rstar2.doctor.gpu_check.tools.model import SEED
    from rstar2.loop.turns.choose import load_codec
    from rstar2.train.conversations import encode

    rows = [{"messages": each} for each in islice(builtin.traces(SEED, CONVERSATIONS, {}), CONVERSATIONS)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    codec = load_codec(model)
    return [len(encode(row, codec).input_ids) for row in rows]


def _expected_loss(settings: Settings, model: Path, data: Path) -> float:
    """Returns the mean loss over the tokens that SFT trains on. Transformers computes the loss in fp32, row by row."""
    import torch
    from transformers import AutoModelForCausalLM

    from rstar2.loop.turns.choose import load_codec
    from rstar2.train.conversations import encode, read_conversations

    device, codec = torch_device(settings), load_codec(model)
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device).eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for row in read_conversations(data):
            encoded = encode(row, codec)
            ids = torch.tensor(encoded.input_ids.tolist(), device=device)
            mask = torch.tensor(encoded.loss_mask.tolist(), device=device)[1:]
            every = torch.log_softmax(policy(ids[None]).logits[0, :-1].float(), -1)
            total -= float((every.gather(-1, ids[1:, None])[:, 0] * mask).sum())
            count += int(mask.sum())
    return total / count


CHECK = Check("sft", "One step of SFT", run, limit_s=900.0)
