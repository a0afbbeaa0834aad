"""Checks whether each implementation of attention gives the same log-probabilities as fp32, with and without padding.

The reference is the eager attention of transformers in fp32, on the same device. In bf16, each implementation has
rounding errors. An implementation with a wrong mask or scale has far larger errors.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, Settings
from rstar2.doctor.gpu_check.sizes import Size
from rstar2.doctor.gpu_check.tools.device import torch_device

SIZE = Size("attention", 1024, 3072, 4, 16, 8, 128, 32_768)
SMALL = Size("attention on a CPU", 128, 256, 2, 4, 2, 32, 800)
LENGTHS = (512, 301, 128, 17)
SMALL_LENGTHS = (96, 61, 40, 17)
REFERENCE = "eager"
WAYS = ("eager", "sdpa", "flash_attention_2", "flex_attention")
UNUSED = "flex_attention"
"""An implementation that rstar2 does not use. Errors of this implementation are reported, but do not make the check
fail.
"""
TIMES_WORSE = 3.0
"""An implementation's error may be at most this many times the error of eager attention in bf16, plus `SLACK`."""
SLACK = 2e-3
"""This number of nats is added to the limit of an implementation's error."""
MOST_IN_BF16 = 0.3
"""Limit, in nats, of the mean error of eager attention in bf16. A larger error means that bf16 itself does not work on
the device.
"""
MOST_IN_FP32 = 1e-3
"""Limit, in nats, of the mean difference between padded and unpadded rows in fp32."""


def run(settings: Settings, measurements: Measurements) -> None:
    import torch

    device = torch_device(settings)
    on_gpu = settings.device == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    size, lengths = (SIZE, LENGTHS) if on_gpu else (SMALL, SMALL_LENGTHS)
    torch.manual_seed(1)
    rows = [torch.randint(0, size.vocab, (length,)).to(device) for length in lengths]
    weights = _model(size, REFERENCE, torch.float32, device).state_dict()

    def errors(way: str, dtype: Any) -> tuple[float, float]:
        """Returns two mean distances in nats: from unpadded rows to the reference, and from padded to unpadded rows."""
        model = _model(size, way, dtype, device)
        model.load_state_dict(weights)
        alone = _unpadded(model, rows)
        return _distance(alone, exact), _distance(_padded(model, rows), alone)

    reference = _model(size, REFERENCE, torch.float32, device)
    reference.load_state_dict(weights)
    exact = _unpadded(reference, rows)
    wrong: dict[str, list[str]] = {way: [] for way in WAYS}
    _, padded = errors("sdpa", torch.float32)
    measurements.add("sdpa in fp32: padded against unpadded", padded, "nats")
    if not padded <= MOST_IN_FP32:
        wrong["sdpa"].append(f"sdpa in fp32: padding changes log-probabilities by {padded:.2g} nats")
    rounding = 0.0
    for way in WAYS:
        if skipped := _skipped(way, on_gpu):
            measurements.add(f"{way} in bf16", skipped)
            continue
        try:
            off, padded = errors(way, torch.bfloat16)
        except Exception as error:  # noqa: BLE001 - an implementation that does not work is a finding
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            measurements.add(f"{way} in bf16", text)
            wrong[way].append(f"{way} does not run: {text}")
            continue
        measurements.add(f"{way} in bf16: against fp32", off, "nats")
        measurements.add(f"{way} in bf16: padded against unpadded", padded, "nats")
        if way == REFERENCE:
            rounding = off
        limit = MOST_IN_BF16 if way == REFERENCE else TIMES_WORSE * rounding + SLACK
        if not off <= limit:
            wrong[way].append(f"{way} in bf16 is {off:.2g} nats from fp32, more than {limit:.2g}")
        if not padded <= TIMES_WORSE * rounding + SLACK:
            wrong[way].append(f"{way} in bf16: padding changes log-probabilities by {padded:.2g} nats")
    measurements.notes.append(
        "Mean absolute differences of the tokens' log-probabilities; the logits have a standard deviation of 3 nats."
    )
    measurements.notes += [f"{each}. rstar2 does not use it." for each in wrong.pop(UNUSED)]
    if faults := [fault for each in wrong.values() for fault in each]:
        raise CheckFailed(
            "; ".join(faults),
            "Do not train with this attention implementation. Set another hardware.attention, or install another "
            "version of the attention's package or of torch.",
        )
    ran = [way for way in wrong if not _skipped(way, on_gpu)]
    measurements.summary = (
        f"{', '.join(ran)} agree with fp32 within the rounding of bf16 ({rounding:.2g} nats)"
    )


def _skipped(way: str, on_gpu: bool) -> str:
    """Returns why an implementation is not tried, or "" if it is tried."""
    if way == "flash_attention_2":
        if find_spec("flash_attn") is None:
            return "not tried: flash-attn is not installed"
        return "" if on_gpu else "not tried: GPUs only"
    if way == "flex_attention" and not on_gpu:
        return "not tried: GPUs only"
    return ""


def _model(size: Size, way: str, dtype: Any, device: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(**size.config, initializer_range=size.spread, max_position_embeddings=1024)
    config._attn_implementation = way
    return Qwen3ForCausalLM(config).to(device, dtype).eval()


def _unpadded(model: Any, rows: list[Any]) -> list[Any]:
    """Returns the log-probabilities of each row's tokens except the first, shapes (T - 1,).

    The model makes one pass per row.
    """
    import torch

    with torch.no_grad():
        return [_of_tokens(model(row[None]).logits[0], row) for row in rows]


def _padded(model: Any, rows: list[Any]) -> list[Any]:
    """Returns the same log-probabilities as `_unpadded`, computed in one pass with all rows. The rows are padded on the
    left, as in VERL.
    """
    import torch

    longest = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0)) for row in rows])
    mask = torch.stack(
        [torch.nn.functional.pad(torch.ones_like(row), (longest - len(row), 0)) for row in rows]
    )
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(ids, attention_mask=mask, position_ids=positions).logits
    return [
        _of_tokens(row_logits[longest - len(row) :], row)
        for row_logits, row in zip(logits, rows, strict=True)
    ]


def _of_tokens(logits: Any, row: Any) -> Any:
    """Returns the log-probabilities (T - 1,) for logits (T, V) and tokens (T,)."""
    import torch

    return torch.log_softmax(logits[:-1].float(), -1).gather(-1, row[1:, None])[:, 0]


def _distance(some: list[Any], others: list[Any]) -> float:
    """Returns the mean absolute difference over all tokens."""
    import torch

    return float((torch.cat(some) - torch.cat(others)).abs().mean())


CHECK = Check("attention", "Attention and log-probabilities", run, limit_s=420.0)
