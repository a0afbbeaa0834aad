"""Serves a model with vLLM, and the agent with its tools, over HTTP in the format of OpenAI's API.

vllm          finds an installed vLLM, and makes its command line
hardware      chooses the layout of a model on the GPUs, or in the memory, of this machine
choose        turns a user's options into the processes that serve, with notes for the user
plan          the processes: engines, a router if there are several engines, the agent's endpoint
launch        starts one server process and waits until it answers
causes        finds the cause of a server's end in its log, with advice
supervisor    the process that watches and restarts the server processes; settings are its input
start         starts the supervisor from the command line and yields its events
state         the files that record which servers run on this machine
figures       asks a server for its load
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
