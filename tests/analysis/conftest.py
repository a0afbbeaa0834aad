"""A tiny model, and traces that it could have written, for the tests of the analysis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rstar2.loop.trace import CallStatus, ToolCall, Trace, Turn
from rstar2.loop.turns.codec import ChatCodec

CALL = (
    'Let me check.</reason>\n<tool_call>\n{"name": "python_code_with_standard_io", "arguments": '
    '{"code": "import math\\nprint(math.sqrt(16))", "input": ""}}\n</tool_call>'
)
ANSWER = "But it is four.</reason>\n<answer>\\boxed{4}</answer>"

MakeTrace = Callable[..., Trace]


@pytest.fixture(scope="session")
def make_trace(codec: ChatCodec) -> MakeTrace:
    """Makes a trace with one turn for each call status, and a last turn that answers."""

    def make(
        statuses: tuple[CallStatus, ...] = ("ok",),
        *,
        problem: str = "p1",
        sample: int = 0,
        last: str = ANSWER,
        output: str = "4.0",
        logprob: float | None = -0.5,
        **more: Any,
    ) -> Trace:
        ids: list[int] = []
        mask: list[int] = []
        turns = []
        for text, status in [*((CALL, status) for status in statuses), (last, None)]:
            token_ids = [*codec.tokenizer.encode(text, add_special_tokens=False), codec.end_id]
            turn = Turn(text=codec.decode(token_ids), start=len(ids), end=len(ids) + len(token_ids))
            ids, mask = ids + token_ids, mask + [1] * len(token_ids)
            if status is not None:
                code = {"code": "import math\nprint(math.sqrt(16))", "input": ""}
                turn.calls = [
                    ToolCall(name="python", arguments=code, status=status, output=output, wall_s=0.5)
                ]
                reply = codec.tool_turn([output])
                ids, mask = ids + reply, mask + [0] * len(reply)
            turns.append(turn)
        return Trace(
            **{
                "problem_id": problem,
                "sample": sample,
                "prompt_ids": codec.prompt([{"role": "user", "content": f"The root of 16? {problem}"}]),
                "response_ids": ids,
                "response_mask": mask,
                "logprobs": None if logprob is None else [logprob * m for m in mask],
                "turns": turns,
                "finish": "answer",
                "verdict": "correct",
                **more,
            }
        )

    return make


@pytest.fixture(scope="session")
def model_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 with random weights, and the tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=2048,
        initializer_range=0.5,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("analysed") / "model"
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
