"""Tests that a process of the fork server behaves like a new one: arguments, environment, output, signals and end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.optional import needs
from support.waiting import wait_until

from rstar2.train.command import Command
from rstar2.train.launch import SignsOfLife, run_trainer
from rstar2.train.verl import fork_client
from rstar2.train.verl.fork_client import SOCKET_VARIABLE

pytestmark = [pytest.mark.slow, needs("ray")]
CLIENT = [sys.executable, "-I", "-S", fork_client.__file__]
# The demo tests the imports of VERL's processes. Here only the process matters.
LIGHT_SERVER = (
    "from rstar2.train.verl import fork_server\nfork_server.PRELOADED = ('numpy', 'ray')\nfork_server.main()"
)
WAIT_S = 300.0


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """The environment of a client that runs its commands in forked processes."""
    name = f"rstar2-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(8)
        process = subprocess.Popen(
            [sys.executable, "-c", LIGHT_SERVER, str(listener.fileno())], pass_fds=[listener.fileno()]
        )
    yield {**os.environ, SOCKET_VARIABLE: name}
    process.terminate()
    process.wait(WAIT_S)


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_arguments_environment_folder_and_exit_code_are_those_of_the_client(
    server: dict[str, str], tmp_path: Path
) -> None:
    code = (
        "import os, sys\nassert 'ray' in sys.modules\n"
        "print(sys.argv[1:], os.environ['COLOUR'], os.getcwd(), sys.stdin.read())\nsys.exit(7)"
    )
    result = subprocess.run(
        [*CLIENT, script(tmp_path, code), "a b", "$c"],
        env={**server, "COLOUR": "blue"},
        cwd=tmp_path,
        input="typed",
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert result.stdout == f"['a b', '$c'] blue {tmp_path} typed\n", result.stderr
    assert result.returncode == 7


def test_what_verl_loads_by_the_clients_environment_is_loaded(server: dict[str, str], tmp_path: Path) -> None:
    """VERL alone would not load the modules, because the fork server imported it earlier, without the client's
    environment."""
    code = "import sys\nprint('colorsys' in sys.modules)"
    for module, expected in (("colorsys", "True"), ("", "False")):
        result = subprocess.run(
            [*CLIENT, script(tmp_path, code)],
            env={**server, "VERL_USE_EXTERNAL_MODULES": module},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        assert result.stdout == f"{expected}\n", result.stderr


def test_a_module_is_run_as_main_and_an_exception_is_shown(server: dict[str, str]) -> None:
    result = subprocess.run(
        [*CLIENT, "-m", "timeit", "-n", "1", "1/0"],
        env=server,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_forked_process(
    server: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    code = (
        "import signal, sys, threading\n"
        "def stop(number, frame):\n    print('got', number, flush=True); sys.exit(3)\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, stop)\n"
        "print('ready', flush=True)\nthreading.Event().wait(3600)"
    )
    with subprocess.Popen(
        [*CLIENT, script(tmp_path, code)], env=server, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        client.send_signal(number)
        assert client.stdout.readline() == f"got {number.value}\n"
        assert client.wait(WAIT_S) == 3


@pytest.mark.parametrize("begins", [True, False])
def test_nothing_is_run_before_the_client_passes_signals_on(
    server: dict[str, str], tmp_path: Path, begins: bool
) -> None:
    path = script(tmp_path, "print('ran')")
    request = json.dumps({"argv": [path], "env": {}, "cwd": "/", "umask": 0o22}).encode()
    may_begin, begin = os.pipe()
    with socket.socket(socket.AF_UNIX) as client, (tmp_path / "output").open("w") as output:
        client.settimeout(WAIT_S)
        client.connect(f"\0{server[SOCKET_VARIABLE]}")
        descriptors = [0, output.fileno(), 2, may_begin]
        socket.send_fds(client, [len(request).to_bytes(8, "big")], descriptors)
        client.sendall(request)
        os.close(may_begin)
        fork_client.exactly(client, 8)  # the process is there
        if begins:
            os.write(begin, b"1")
        os.close(begin)
        status = int.from_bytes(fork_client.exactly(client, 8), "big")
    assert os.waitstatus_to_exitcode(status) == (0 if begins else 1)
    assert (tmp_path / "output").read_text() == ("ran\n" if begins else "")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSEGV])
def test_neither_end_outlives_the_other(server: dict[str, str], tmp_path: Path, end: signal.Signals) -> None:
    code = "import os, threading\nprint(os.getpid(), flush=True)\nthreading.Event().wait(3600)"
    start = [*CLIENT, script(tmp_path, code)]
    with subprocess.Popen(start, env=server, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        child = int(client.stdout.readline())
        client.kill()
        client.wait(WAIT_S)
        wait_until(lambda: gone(child))
    with subprocess.Popen(start, env=server, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        os.kill(int(client.stdout.readline()), end)
        assert client.wait(WAIT_S) == -end


def test_without_a_server_the_command_runs_in_an_interpreter_of_its_own(tmp_path: Path) -> None:
    result = subprocess.run(
        [*CLIENT, script(tmp_path, "import sys\nprint('ray' in sys.modules)")],
        env={**os.environ, SOCKET_VARIABLE: "rstar2-nobody-listens-here"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert result.stdout == "False\n", result.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize(("uid", "served"), [(0, True), (65534, False)])
def test_only_the_servers_own_user_is_served(server: dict[str, str], uid: int, served: bool) -> None:
    code = (
        "import array, json, os, socket, sys\nos.setuid(int(sys.argv[2]))\n"
        "client = socket.socket(socket.AF_UNIX)\nclient.settimeout(300)\nclient.connect(chr(0) + sys.argv[1])\n"
        "body = json.dumps({'argv': ['-m', 'this'], 'env': {}, 'cwd': '/', 'umask': 18}).encode()\n"
        "files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1, 2, os.pipe()[0]]))]\n"
        "try:\n    client.sendmsg([len(body).to_bytes(8, 'big')], files)\n    client.sendall(body)\n"
        "    answer = client.recv(8)\nexcept ConnectionError:\n    answer = b''\n"
        "sys.exit(0 if len(answer) == 8 else 5)"
    )
    command = [sys.executable, "-c", code, server[SOCKET_VARIABLE], str(uid)]
    result = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False)
    assert result.returncode == (0 if served else 5), result.stderr


def signs(folder: Path) -> SignsOfLife:
    return SignsOfLife(folder / "metrics.jsonl", folder, 3000.0)


def test_a_trainers_command_goes_through_the_server(server: dict[str, str], tmp_path: Path) -> None:
    path = script(tmp_path, "import sys\nprint('forked' if 'ray' in sys.modules else 'fresh')")
    command = Command([sys.executable, path], {SOCKET_VARIABLE: server[SOCKET_VARIABLE]})
    run_trainer(command, tmp_path / "log", signs(tmp_path), lambda line: None, pytest.fail)
    assert (tmp_path / "log").read_text() == "forked\n"
