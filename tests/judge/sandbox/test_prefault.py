"""Profiled zygotes: forks immediately copy the pages that programs write, and nothing else changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.waiting import TIMEOUT_S

from rstar2.judge.sandbox import sandbox as sandbox_module
from rstar2.judge.sandbox.inside.prefault import open_rings
from rstar2.judge.sandbox.jail import JailLost
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import RunRequest

FAULTS = "import resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)"
PREFAULT = """
import json, mmap, os, sys
from rstar2.judge.sandbox.inside.prefault import open_rings, register, written_by_either

PAGES, PAGE = 1024, os.sysconf("SC_PAGE_SIZE")
memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for number in range(PAGES):
    memory[number * PAGE] = 1

def in_fork(act, act_here=lambda: None):
    # Returns the pages that a fork or its parent has written while the fork lives.
    ready_read, ready_write = os.pipe()
    exit_read, exit_write = os.pipe()
    child = os.fork()
    if child == 0:
        act()
        os.write(ready_write, b"x")
        os.read(exit_read, 1)
        os._exit(0)
    os.read(ready_read, 1)
    act_here()
    pages = written_by_either(child)
    os.write(exit_write, b"x")
    os.waitpid(child, 0)
    return pages

def write(pages):
    for number in pages:
        memory[number * PAGE] = 2

before = in_fork(lambda: None)
after = in_fork(lambda: write(range(0, PAGES, 4)), lambda: write(range(1, PAGES, 4)))
written = after - before
[ring] = open_rings(1)
register(ring, written)
prefaulted = in_fork(lambda: None)
print(json.dumps([len(written), len(written & prefaulted), memory[0], memory[PAGE]]))
try:
    written_by_either(1 << 30)
except OSError as error:
    print(error)
"""
BLOCKED_SIGNALS = """
import os, signal
from rstar2.judge.sandbox.inside import syscalls

init = syscalls.BareInit()
sent = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
for number in sent:
    os.kill(init.pid, number)
status = open(f"/proc/{init.pid}/status").read()
pending = int(status.split("ShdPnd:")[1].split()[0], 16)
init.end()
print([bool(pending >> number - 1 & 1) for number in sent])
"""
WITHOUT_IO_URING = """
import sys
from pathlib import Path
import pyseccomp

refuse = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
refuse.add_rule(pyseccomp.ERRNO(1), "io_uring_setup")
refuse.load()
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.sandbox.inside.prefault import open_rings
from rstar2.judge.schema import RunRequest

sandbox = Sandbox(Path(sys.argv[1]), minimum="landlock")
sandbox.start()
print(open_rings(4), 1 <= sum(sandbox.profile_next_zygote() for _ in range(5)) <= 4)
print(sandbox.run(RunRequest(code="print(6 * 7)"), "0").stdout)
sandbox.close()
"""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    profiled_sandbox = Sandbox(tmp_path_factory.mktemp("profiled"), minimum="landlock")
    profiled_sandbox.start()
    yield profiled_sandbox
    profiled_sandbox.close()


def run(sandbox: Sandbox, code: str) -> str:
    result = sandbox.run(RunRequest(code=code, timeout_s=TIMEOUT_S), "0")
    assert result.outcome == "ok", result
    return result.stdout


def needs_rings() -> None:
    rings = open_rings(1)
    for ring in rings:
        os.close(ring)
    if not rings:
        pytest.skip("this machine does not allow io_uring")


def test_a_fork_begins_with_copies_of_what_is_prefaulted() -> None:
    needs_rings()
    output = subprocess.run(
        [sys.executable, "-c", PREFAULT], capture_output=True, text=True, check=True
    ).stdout
    numbers, last_line = output.splitlines()
    written_pages, prefaulted_pages, *first_values = json.loads(numbers)
    # The program writes half of the 1,024 pages, and the interpreter writes a few more.
    assert 512 <= written_pages < 640
    assert prefaulted_pages == written_pages
    assert first_values == [1, 2]
    assert "No such file" in last_line


def test_programs_of_a_profiled_zygote_fault_less_and_share_nothing(sandbox: Sandbox) -> None:
    needs_rings()
    poison = "import builtins, sys\nbuiltins.len = None\nsys.poison = 1\nprint(6 * 7)"
    run(sandbox, FAULTS)
    before = int(run(sandbox, FAULTS))
    assert 1 <= sum(sandbox.profile_next_zygote() for _ in range(5)) <= 4
    assert int(run(sandbox, FAULTS)) < before / 2
    run(sandbox, poison)
    assert run(sandbox, "import sys\nprint(len('ab'), hasattr(sys, 'poison'))") == "2 False\n"


def test_a_program_that_ends_while_its_zygote_is_profiled_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "_SLEEP_CODE", "import os\nos._exit(3)")
    sandbox = Sandbox(tmp_path, minimum="landlock")
    sandbox.start()
    session = sandbox.open_session(kind="bare")
    session.run_cell("x = 42", TIMEOUT_S, "0")
    assert sandbox.profile_next_zygote()
    assert session.run_cell("x", TIMEOUT_S, "1").value == "42"
    assert run(sandbox, "print(6 * 7)") == "42\n"
    sandbox.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a namespace alone")
def test_signals_to_the_first_process_of_a_namespace_stay_pending() -> None:
    output = subprocess.run(
        [sys.executable, "-c", BLOCKED_SIGNALS], capture_output=True, text=True, timeout=600
    ).stdout
    assert output == "[True, True, True]\n"


@pytest.mark.slow
def test_without_io_uring_everything_works_as_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_IO_URING, str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    assert output.split() == ["[]", "True", "42"]


def test_a_jail_that_is_lost_while_profiling_is_built_again_and_not_profiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = Sandbox(tmp_path, minimum="landlock")
    sandbox.start()

    def lose(_weight: str) -> None:
        raise JailLost("as if the zygote had died")

    monkeypatch.setattr(sandbox, "_profile", lose)
    assert sandbox.profile_next_zygote()
    assert run(sandbox, "print(6 * 7)") == "42\n"
    assert not sandbox.profile_next_zygote()
    sandbox.close()
