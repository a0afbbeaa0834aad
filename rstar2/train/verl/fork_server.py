"""A process that has imported torch, transformers and VERL once, and forks itself for every process that needs them.

One run of VERL on a laptop is nine processes, each of which imports the same libraries for several seconds of
processor time, again in each stage. Forked from this one they have them at once, and share their memory. Only the
CPU profile uses it; `rstar2.train.verl.fork_client` is the other end. It exists only for speed: where it is not
there or does not answer, the same commands run in fresh interpreters.

    python -m rstar2.train.verl.fork_server LISTENER LOG

LISTENER is the descriptor of a listening socket; LOG only tells whoever lists processes which run this one serves.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from dataclasses import dataclass

from rstar2.processes import die_with
from rstar2.train.verl.fork_client import exactly

PRELOADED = (
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "datasets",
    "pandas",
    "ray._private.runtime_env.setup_hook",
    "verl.trainer.main_ppo",
    "verl.trainer.sft_trainer",
    "verl.trainer.ppo.v1",
    "verl.trainer.ppo.v1.trainer_sync",
    "verl.model_merger.fsdp_model_merger",
    "verl.experimental.agent_loop",
    "verl.experimental.reward_loop",
    "verl.workers.engine_workers",
    "verl.workers.rollout.llm_server",
    "rstar2.train.verl.activity",
    "rstar2.train.verl.agent_loop",
    "rstar2.train.verl.cpu.rollout",
    "rstar2.train.verl.plugin",
    "rstar2.train.verl.sampler",
)
"""What the trainers' processes import. Anything left out is only imported later, by the process that wants it."""
FIXED_AT_IMPORT = {
    # The first job of a cluster, which is what a trainer is in a cluster of its own.
    "RAY_JOB_ID": "01000000",
    # pyarrow's usual allocator starts a thread, which no fork would have.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Environment variables that libraries read once, when they are imported, so that a child's own come too late.

RAY_RAYLET_PID, whose process a worker must not outlive, is one more; the workers are bound to this process instead,
and `fork_client` to the raylet.
"""
REQUEST_S = 10.0
"""How long a client may take to send its request once it is connected."""


@dataclass
class _Child:
    pid: int
    connection: socket.socket
    pidfd: int


@dataclass(frozen=True)
class Job:
    """What a forked process is to run: the parts of a command line and where it was given."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    descriptors: list[int]
    """Standard input, output and error, and a pipe in which a byte arrives when the job may begin."""


class ForkServer:
    """Accepts requests on a Unix socket that is bound and listening, and forks a child for each."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._children: dict[int, _Child] = {}
        """By descriptor: each child is found by its pidfd and by its client's connection."""

    def serve(self) -> Job:
        """Fork for every request. Returns only in a child, with what that is to run."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    if (job := self._accept()) is not None:
                        return job
                elif (child := self._children.get(key.fd)) is not None:
                    self._reap(child, key.fd)

    def _accept(self) -> Job | None:
        connection, _ = self._listener.accept()
        connection.settimeout(REQUEST_S)
        try:
            _refuse_strangers(connection)
            job = _receive(connection)
        except (OSError, ValueError):
            connection.close()
            return None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with(server, signal.SIGKILL)()
            connection.close()
            self._forget_all()
            return job
        for descriptor in job.descriptors:
            os.close(descriptor)
        child = _Child(pid, connection, os.pidfd_open(pid))
        for descriptor in (connection.fileno(), child.pidfd):
            self._children[descriptor] = child
            self._selector.register(descriptor, selectors.EVENT_READ)
        with contextlib.suppress(OSError):  # a client that is gone is noticed by its closed connection
            connection.sendall(pid.to_bytes(8, "big"))
        return None

    def _reap(self, child: _Child, descriptor: int) -> None:
        """A child ended, or its client did, and then the child must not outlive it."""
        if descriptor != child.pidfd:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
        with contextlib.suppress(OSError):
            child.connection.sendall(status.to_bytes(8, "big"))
        for each in (child.connection.fileno(), child.pidfd):
            self._selector.unregister(each)
            del self._children[each]
        child.connection.close()
        os.close(child.pidfd)

    def _forget_all(self) -> None:
        """In a child: close what belongs to the server."""
        self._selector.close()
        self._listener.close()
        for child in {id(child): child for child in self._children.values()}.values():
            child.connection.close()
            os.close(child.pidfd)
        self._children.clear()


def _refuse_strangers(connection: socket.socket) -> None:
    """Raise PermissionError for another user's client: whoever may connect has its commands run as this user."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.getuid():
        raise PermissionError(f"user {uid} is not served")


def _receive(connection: socket.socket) -> Job:
    """One request: an eight-byte length with four descriptors, then JSON.

    Raises OSError where the client left or sent nothing in time, ValueError where what it sent is no request.
    """
    header, descriptors, _, _ = socket.recv_fds(connection, 8, 4)
    if len(header) < 8 or len(descriptors) != 4:
        raise ValueError("not a request")
    return Job(**json.loads(exactly(connection, int.from_bytes(header, "big"))), descriptors=descriptors)


def _become(job: Job, set_by_imports: dict[str, str]) -> None:
    """Take on the process state the job was asked for in: descriptors, environment, folder, random numbers.

    Returns when the client passes signals on to this process; the process ends where the client has ended first.
    """
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    *standard, may_begin = job.descriptors
    for target, descriptor in enumerate(standard):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(set_by_imports | job.env)
    os.chdir(job.cwd)
    os.umask(job.umask)
    # Ray's C++ library has read RAY_… from the server's environment already.
    raylet = sys.modules["ray._raylet"]
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    # random is seeded anew by Python at a fork; torch starts from a fixed seed in a fresh interpreter, too.
    sys.modules["numpy"].random.seed()
    # Bounded by the client's life: its end closes the pipe.
    if not os.read(may_begin, 1):
        os._exit(1)
    os.close(may_begin)
    # VERL loads what this names when it is imported, which was before the job's environment was known.
    for name in filter(None, os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")):
        importlib.import_module(name)


def _run(argv: list[str]) -> None:
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    os.environ |= FIXED_AT_IMPORT | {"RAY_RAYLET_PID": str(os.getpid())}
    before = dict(os.environ)
    # Nearly all that the imports make stays: looking for what does not takes a tenth of their time.
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    # What is not collected again is not written to again, so that parent and children keep sharing it.
    gc.collect()
    gc.freeze()
    gc.enable()
    job = ForkServer(listener).serve()
    _become(job, set_by_imports)
    _run(job.argv)


if __name__ == "__main__":
    main()
