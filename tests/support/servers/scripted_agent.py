"""The agent's endpoint with a scripted engine. The engine writes one program for a real judge and then answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.servers.serving import serve_app
from support.servers.vllm_standin import StandIn
from support.tools import patient

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.turns.codec import ChatCodec
from rstar2.serve.plan import AgentServerSettings

QUESTION = "What is 6 * 7?"
CALL = '{"name": "python_code_with_standard_io", "arguments": {"code": "print(6 * 7)", "input": ""}}'
FIRST = f"I multiply.</reason>\n<tool_call>\n{CALL}\n</tool_call>"
SECOND = "It is 42.</reason>\n<answer>\\boxed{42}</answer>"
KEY = "secret"


def make_model(folder: Path) -> None:
    """Create a model with random weights in the demo's format."""
    tiny = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(folder, tiny, builtin.traces(1, 60, {}), patient(builtin.FORMAT), seed=1)


def scripted(folder: Path, codec: ChatCodec, name: str = "scripted") -> StandIn:
    """Run an engine that writes `FIRST`, and `SECOND` after a tool result."""
    response = codec.tokenizer.convert_tokens_to_ids("<tool_response>")
    standin = StandIn(lambda prompt: codec.turn(SECOND if response in prompt else FIRST), (name,))
    standin.root = str(folder)
    return standin


@contextmanager
def serve_agent(
    engine_url: str | None, folder: Path, judge: JudgeHandle, key: str | None = KEY, **more: Any
) -> Iterator[str]:
    """Serve the agent. Yields its URL. Without an engine's URL, the agent runs the model in its process."""
    from rstar2.serve.openai.agent_server import create_app, open_model

    about = {"host": "127.0.0.1", "port": 1, "max_tokens": 4096, **more}
    settings = AgentServerSettings(engine_url=engine_url, model=str(folder), api_key=key, **about)
    with serve_app(create_app(settings, open_model(settings), (judge.url, judge.token))) as url:
        yield url
