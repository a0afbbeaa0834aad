"""A tier passes its escape tests, or the sandbox does not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.judge.ordinary_user import OrdinaryUser, ThisUser, start_sandbox
from support.waiting import TIMEOUT_S

from rstar2.errors import Failure, UserError
from rstar2.judge.sandbox import seccomp, tiers
from rstar2.judge.sandbox.host import cgroups
from rstar2.judge.sandbox.inside import syscalls
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import Isolation, RunRequest

_FILTERED = [
    *("lease_own_file", "own_signals", "own_signals_by_kind", "own_signals_by_ioctl", "choose_signal"),
    *(
        "signal_on_input",
        "signal_on_input_by_ioctl",
        "enlarge_pipe",
        "evict_library",
        "renice_group",
        "hide",
        "watch_files",
    ),
]
"""Attempts that only seccomp refuses, in every tier and for every user."""


def test_a_tier_below_the_minimum_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="below the minimum"):
        Sandbox(tmp_path, tier="landlock", minimum="strict")


def test_the_best_tier_is_taken_and_never_none_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(tier: str, root: Path) -> Any:
        raise Failure(f"no {tier} here")

    monkeypatch.setattr(tiers, "jail_specs", refuse)
    with pytest.raises(Failure, match=r"strict: no strict here; landlock: no landlock here"):
        Sandbox(tmp_path, minimum="none").start()


def test_without_libseccomp_the_failure_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seccomp.library.cache_clear()
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    try:
        with pytest.raises(Failure, match="libseccomp"):
            Sandbox(tmp_path, minimum="landlock").start()
    finally:
        seccomp.library.cache_clear()


def _weaken(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    jail_specs = tiers.jail_specs
    monkeypatch.setattr(tiers, "jail_specs", lambda tier, root: [{**jail_specs(tier, root)[0], **changes}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "attempts"),
    [
        ({"landlock_abi": 0}, ["read_secret", "write_outside"]),
        ({"program_filter": b""}, ["netlink_socket", "lease_library", *_FILTERED]),
        ({"landlock_abi": 0, "program_filter": b""}, ["read_secret", "connect_local", "connect_abstract"]),
    ],
)
def test_a_hole_in_the_landlock_tier_is_found_by_its_escape_tests(
    landlock: Sandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, object],
    attempts: list[str],
) -> None:
    del landlock  # Only for its skip where the machine has no Landlock.
    _weaken(monkeypatch, **changes)
    with pytest.raises(Failure, match="an escape attempt succeeded") as caught:
        Sandbox(tmp_path, tier="landlock", minimum="landlock").start()
    for attempt in attempts:
        assert attempt in str(caught.value)


@pytest.mark.slow
def test_a_hole_in_the_strict_tier_is_found_by_its_escape_tests(
    strict: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del strict
    tmp_path.chmod(0o755)
    spec = tiers.jail_specs(tier="strict", root=tmp_path)[0]
    _weaken(monkeypatch, bound_paths=[*spec["bound_paths"], str(tmp_path)])
    with pytest.raises(Failure, match="read_secret"):
        Sandbox(tmp_path, tier="strict").start()
    _weaken(monkeypatch, program_filter=b"")
    with pytest.raises(Failure, match="new_user_namespace"):
        Sandbox(tmp_path, tier="strict").start()


def _start_weakened(folder: Path, tier: Isolation, changes: dict[str, object]) -> Sandbox:
    with pytest.MonkeyPatch.context() as patch:
        _weaken(patch, **changes)
        return start_sandbox(folder, tier)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tier", "attempts"),
    [
        ("strict", ["watch_folder"]),
        ("landlock", ["renice_user", "renice_worker", "pin_worker", "measure_worker"]),
    ],
)
def test_a_hole_in_a_filter_is_found_by_the_escape_tests_of_a_user_too(
    request: pytest.FixtureRequest, tier: Isolation, attempts: list[str]
) -> None:
    request.getfixturevalue(f"{tier}_user")  # Only for its skip.
    with pytest.raises(Failure, match="an escape attempt succeeded") as caught:
        OrdinaryUser(tier, _start_weakened, {"zygote_filter": b"", "program_filter": b""})
    for attempt in attempts + _FILTERED:
        assert attempt in str(caught.value)


@pytest.mark.slow
def test_strict_holds_for_root_where_user_namespaces_are_refused(
    strict: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(tiers.jail_specs("strict", tmp_path)) < 2:
        pytest.skip("the worker is not root, so there is no other way to the strict tier")
    del strict
    _weaken(monkeypatch, user_namespace=False)
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    assert (
        int(sandbox.run(RunRequest(code="import os; print(os.getuid())", timeout_s=TIMEOUT_S), "a").stdout)
        > 1_000_000
    )
    assert any("User namespaces are refused" in line for line in sandbox.exceptions())
    sandbox.close()


@pytest.mark.slow
def test_strict_holds_without_landlock_and_control_groups_and_says_so(
    strict: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del strict
    _weaken(monkeypatch, landlock_abi=0)
    monkeypatch.setattr(cgroups, "_candidates", lambda controller: [])
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    exceptions = " ".join(sandbox.exceptions())
    assert "no Landlock" in exceptions
    assert "No memory control group" in exceptions
    sandbox.close()


@pytest.mark.slow
def test_none_runs_programs_sweeps_what_they_leave_and_says_that_it_confines_nothing(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, tier="none", minimum="none")
    sandbox.start()
    code = "import os, time\npid = os.fork()\nif pid == 0:\n    os.setsid()\n    time.sleep(600)\nprint(pid)"
    result = sandbox.run(RunRequest(code=code, timeout_s=TIMEOUT_S), "a")
    assert (result.outcome, result.isolation) == ("ok", "none")
    assert "without any confinement" in sandbox.exceptions()[0]
    assert not Path(f"/proc/{int(result.stdout)}").exists()
    sandbox.close()


def _write_and_read(sandbox: Sandbox) -> tuple[str, list[str]]:
    code = "open('a', 'w').write('x')\nprint(open('a').read())"
    return sandbox.run(RunRequest(code=code, timeout_s=TIMEOUT_S), "a").stdout, sandbox.exceptions()


@pytest.mark.slow
@pytest.mark.parametrize("abi", [1, 3, 5])
@pytest.mark.parametrize("user", ["landlock", "landlock_user"])
def test_landlock_holds_on_kernels_with_an_older_version_of_it(
    request: pytest.FixtureRequest, tmp_path: Path, abi: int, user: str
) -> None:
    if syscalls.landlock_abi() < abi:
        pytest.skip(f"this kernel's Landlock is version {syscalls.landlock_abi()}")
    request.getfixturevalue(user)  # Only for its skip.
    changes = {"landlock_abi": abi, "program_filter": seccomp.landlock_filter(abi)}
    worker: ThisUser | OrdinaryUser
    if user == "landlock":
        worker = ThisUser(_start_weakened(tmp_path, "landlock", changes))
    else:
        worker = OrdinaryUser("landlock", _start_weakened, changes)
    output, exceptions = worker.do(_write_and_read)
    assert output == "x\n"
    assert any("cannot confine signals" in line for line in exceptions)
    worker.close()


_Calls = dict[str, tuple[int | str, ...]]
"""Numbers and arguments of system calls, keyed by name. `me` is the caller's process id."""
_CALL_ALL = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
# setsid always fails in the program itself, whatever the filter allows, because the program leads a session.
child = os.fork() if can_fork else 0
if child:
    os.waitpid(child, 0)
else:
    for name, (number, *arguments) in calls.items():
        arguments = [os.getpid() if argument == "me" else argument for argument in arguments]
        ctypes.set_errno(0)
        result = libc.syscall(number, *map(ctypes.c_long, arguments + [0] * (6 - len(arguments))))
        print(name, errno.errorcode.get(ctypes.get_errno()), result, flush=True)
"""


def _call_all(sandbox: Sandbox, calls: _Calls) -> tuple[str, str]:
    can_fork = sandbox.isolation == "strict"
    request = RunRequest(code=f"calls, can_fork = {calls!r}, {can_fork}\n{_CALL_ALL}", timeout_s=TIMEOUT_S)
    return sandbox.isolation, sandbox.run(request, "a").stdout


def test_a_program_is_refused_what_its_zygote_confines_it_with(worker: ThisUser | OrdinaryUser) -> None:
    library = seccomp.library()
    number = partial(library.resolve_syscall, library.Arch.NATIVE)
    # Without a filter, a call with these arguments succeeds or fails with another error. setgroups is missing: without
    # capabilities it always fails with this error.
    refused_calls: _Calls = {
        name: (number(name), *arguments)
        for name, arguments in {
            "setns": (-1,),
            "unshare": (),
            "mount": (),
            "umount2": (),
            "setresuid": (-1, -1, -1),
            "setresgid": (-1, -1, -1),
            "capset": (),
            "seccomp": (1,),
            "setsid": (),
            "setpriority": (os.PRIO_PROCESS, "me", 5),
        }.items()
    }
    missing_calls: _Calls = {
        "landlock_create_ruleset": (syscalls.LANDLOCK_CALLS[0],),
        "landlock_add_rule": (syscalls.LANDLOCK_CALLS[1],),
        "landlock_restrict_self": (syscalls.LANDLOCK_CALLS[2],),
        "io_uring_register": (syscalls.IO_URING_REGISTER,),
        "death signal": (number("prctl"), syscalls.PR_SET_PDEATHSIG, 0),
        "reaper": (number("prctl"), syscalls.PR_SET_CHILD_SUBREAPER, 0),
    }
    clone_call: _Calls = {"clone": (number("clone"), syscalls.CLONE_NEWPID | signal.SIGCHLD)}
    own_priority_call: _Calls = {"own priority": (number("setpriority"), os.PRIO_PROCESS, 0, 5)}
    tier, output = worker.do(_call_all, refused_calls | missing_calls | clone_call | own_priority_call)
    expected = [f"{name} EPERM -1" for name in refused_calls] + [
        f"{name} ENOSYS -1" for name in missing_calls
    ]
    expected += [f"clone {'ENOSYS' if tier == 'strict' else 'EPERM'} -1", "own priority None 0"]
    assert output.splitlines() == expected


def test_every_landlock_exception_is_a_sentence(landlock: Sandbox) -> None:
    exceptions = landlock.exceptions()
    assert len(exceptions) >= 7
    assert all(line.endswith(".") for line in exceptions)


def test_a_jail_has_a_share_of_the_processors_where_sessions_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroups, "_sessions_share_processors", lambda: True)
    by_session = cgroups.Cgroup()
    assert by_session.cpu is None
    by_session.close()
    monkeypatch.setattr(cgroups, "_sessions_share_processors", lambda: False)
    group = cgroups.Cgroup()
    if group.cpu is None:
        assert not os.access("/sys/fs/cgroup/cpu", os.W_OK), "the group was not made although it can be"
        return
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        group.add(process.pid)
        assert group.cpu.name in Path(f"/proc/{process.pid}/cgroup").read_text()
        process.kill()
    group.close()
    assert not group.cpu.exists()
