"""The fork server: a process that has imported torch, transformers and VERL, and forks when a process with these
libraries is needed.

A run of VERL on a laptop has nine processes. Without the fork server, each of the nine processes would import the same
libraries in every stage, and each import takes several seconds of processor time. A forked process has the libraries at
once, and shares their memory with the server.

The server exists only for speed, and only the CPU profile uses it. `rstar2.train.verl.fork_client` is the server's
client. If the server is missing or does not respond, the commands of the trainer's processes run in new interpreters.

    python -m rstar2.train.verl.fork_server LISTENER LOG

LISTENER is the descriptor of a listening socket. The server does not use LOG. In a list of processes, LOG shows which
run the server belongs to.
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
"""Modules that the trainer's processes import. If a module is missing from this list, each process that needs the
module imports it itself."""
FIXED_AT_IMPORT = {
    # The id of a cluster's first job. A trainer has a cluster of its own, so it is the first job.
    "RAY_JOB_ID": "01000000",
    # pyarrow's usual allocator starts a thread, and threads do not survive a fork.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Environment variables that libraries read when they are imported. Changing them in a forked process would have no
effect.

In addition to these variables, RAY_RAYLET_PID is set to the process id of the fork server. A worker of Ray ends when
the process with the id in RAY_RAYLET_PID ends. A forked worker therefore ends with the fork server, and `fork_client`
ends with Ray's raylet.
"""
REQUEST_S = 10.0
"""Timeout in seconds for each part of a client's request."""


@dataclass
class _Child:
    pid: int
    connection: socket.socket
    pidfd: int


@dataclass(frozen=True)
class Job:
    """The command that a forked process runs, and the process state in which the command runs."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    descriptors: list[int]
    """Four file descriptors: standard input, output and error, and a pipe. When a byte arrives in the pipe, the job may
    begin."""


class ForkServer:
    """Accepts requests on a listening Unix socket, and forks a child for each request."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._children: dict[int, _Child] = {}
        """Dict from file descriptor to child. Each child has two descriptors: its pidfd, and the connection to its
        client."""

    def serve(self) -> Job:
        """Forks a child for every request. `serve` returns only in a child, with the child's job."""
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
            _check_user(connection)
            job = _receive(connection)
        except (OSError, ValueError):
            connection.close()
            return None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with(server, signal.SIGKILL)()
            connection.close()
            self._close_server_descriptors()
            return job
        for descriptor in job.descriptors:
            os.close(descriptor)
        child = _Child(pid, connection, os.pidfd_open(pid))
        for descriptor in (connection.fileno(), child.pidfd):
            self._children[descriptor] = child
            self._selector.register(descriptor, selectors.EVENT_READ)
        with contextlib.suppress(
            OSError
        ):  # if the client has ended, `serve` sees that its connection is closed
            connection.sendall(pid.to_bytes(8, "big"))
        return None

    def _reap(self, child: _Child, descriptor: int) -> None:
        """Cleans up after a child that ended, or kills a child whose client ended.

        Args:
            child: the child.
            descriptor: the descriptor that became readable: the child's pidfd or its client's connection.
        """
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

    def _close_server_descriptors(self) -> None:
        """Closes the server's descriptors. Called in a child."""
        self._selector.close()
        self._listener.close()
        for child in {id(child): child for child in self._children.values()}.values():
            child.connection.close()
            os.close(child.pidfd)
        self._children.clear()


def _check_user(connection: socket.socket) -> None:
    """Raises PermissionError if the client belongs to another user, because the server would run the client's commands
    as the server's own user."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.getuid():
        raise PermissionError(f"the client belongs to user {uid}, not to user {os.getuid()}")


def _receive(connection: socket.socket) -> Job:
    """Receives a request. A request begins with eight bytes, which are the length of the JSON and come with four file
    descriptors. The JSON follows.

    Raises:
        OSError: the client closed the connection, or sent nothing for `REQUEST_S` seconds.
        ValueError: the data is not a request.
    """
    header, descriptors, _, _ = socket.recv_fds(connection, 8, 4)
    if len(header) < 8 or len(descriptors) != 4:
        raise ValueError("not a request")
    return Job(**json.loads(exactly(connection, int.from_bytes(header, "big"))), descriptors=descriptors)


def _set_up_process(job: Job, set_by_imports: dict[str, str]) -> None:
    """Gives this process the state of its client: descriptors, environment, folder and umask.

    The function returns when the client is ready to forward signals to this process. If the client ends before it is
    ready, this process ends.
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
    # Ray's C++ library has read the RAY_… variables of the server. It reads the job's now.
    raylet = sys.modules["ray._raylet"]
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    # Python seeds `random` again after a fork. torch starts from a fixed seed in a new interpreter too.
    sys.modules["numpy"].random.seed()
    # This wait ends at the latest with the client, whose end closes the pipe.
    if not os.read(may_begin, 1):
        os._exit(1)
    os.close(may_begin)
    # VERL loads these modules when it is imported. That was before this process had the job's environment.
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
    # Imports create almost no garbage, but searching for it takes a tenth of their time.
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    set_by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    # The garbage collector writes to the objects that it examines, and memory that is written to is no longer shared.
    # Frozen objects are not examined.
    gc.collect()
    gc.freeze()
    gc.enable()
    job = ForkServer(listener).serve()
    _set_up_process(job, set_by_imports)
    _run(job.argv)


if __name__ == "__main__":
    main()
