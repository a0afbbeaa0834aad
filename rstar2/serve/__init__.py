"""Serves a model with vLLM, and the agent with its tools, over HTTP in the format of OpenAI's API.

vllm          finds vLLM, and makes its command line
hardware      GPUs and memory of this machine, and how a model is laid out on them
choose        from what a user asks for to the processes that do it, with the reasons
plan          those processes: engines, a router before several, the endpoint with tools
launch        starts one server process and waits until it answers
causes        what a log says about why a server ended, and what to do
supervisor    the process that keeps the others alive; start, state, figures: its other side, in the command line
openai/       the agent's HTTP endpoint, which can also run its model with transformers
"""

from rstar2.serve.launch import running_server
from rstar2.serve.vllm import (
    VLLM,
    ServeSettings,
    find_vllm,
    install_commands,
    install_hint,
    vllm_command,
)

__all__ = [
    "VLLM",
    "ServeSettings",
    "find_vllm",
    "install_commands",
    "install_hint",
    "running_server",
    "vllm_command",
]
