"""Secrecy: a program finds no data of earlier programs in its memory, in files or in other processes."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any

import pytest
from support.judge.ordinary_user import OrdinaryUser, ThisUser, start_sandbox
from support.waiting import TIMEOUT_S

from rstar2.judge.sandbox import tiers
from rstar2.judge.sandbox.protocol import JailSpec
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import Isolation, RunRequest

_MARK = "planted"
# Landlock hides /proc, so mincore(2) tells which pages are mapped. Little is mapped far from the first areas. Each page
# is written to a pipe: the write fails for an unreadable page, which is skipped.
_SCAN = """
import ctypes, os, re
libc = ctypes.CDLL(None, use_errno=True)
libc.mincore.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p]
libc.write.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t]
libc.sbrk.restype = ctypes.c_size_t
control = ''.join(['plan', 'ted', '-own-', 'f' * 16])
PAGE, CHUNK = 4096, 1 << 21
state = ctypes.create_string_buffer(CHUNK // PAGE)
reader, writer = os.pipe()

def mapped(address, size):
    return libc.mincore(address, size, state) == 0 or ctypes.get_errno() != 12

def pages(address):
    if mapped(address, CHUNK):
        yield from range(address, address + CHUNK, PAGE)
        return
    for page in range(address, address + CHUNK, PAGE):
        if mapped(page, PAGE):
            yield page

def text(first, last):
    for chunk in range(first // CHUNK * CHUNK, last, CHUNK):
        for page in pages(chunk):
            yield os.read(reader, PAGE) if libc.write(writer, page, PAGE) == PAGE else b''

anywhere, stack = id(object()), ctypes.addressof(ctypes.c_char())
heap = libc.sbrk(0)
found, tail = set(), b''
library = ctypes.cast(libc.printf, ctypes.c_void_p).value
spans = [(heap - (192 << 20), heap)]
for place in (anywhere, id(type), library, ctypes.addressof(state)):
    if not any(first <= place < last for first, last in spans):
        spans.append((place - (192 << 20), place + (64 << 20)))
for first, last in spans:
    for page in text(first, last):
        found.update(re.findall(rb'planted-\\w+-[0-9a-f]{16}', tail + page))
        tail = page[-64:]
print(*sorted(word.decode() for word in found))
"""


def _plant(sandbox: Sandbox) -> None:
    """Run programs and a session, with a different secret in every input: code, stdin, files, output and values."""

    def secret(place: str) -> str:
        return f"{_MARK}-{place}-{secrets.token_hex(8)}"

    def run(code: str, stdin: str = "") -> None:
        result = sandbox.run(RunRequest(code=code, stdin=stdin, timeout_s=TIMEOUT_S), "planting")
        assert result.outcome in ("ok", "error"), result

    for size in range(5, 165, 5):
        run(f"x = '{secret('short')}'\n" + f"# {secret('comment')}\n" * size)
    for _ in range(5):
        run(f"x = '{secret('long')}'\n" + f"# {secret('comment')}\n" * 400)
        run("import sys\nlen(sys.stdin.read())", secret("input") * 20)
        run("import sys\nlen(sys.stdin.read())", secret("input") * 4000)
        run(f"open('{secret('file')}', 'w').write('{secret('content')}')\n1 / 0")
        run(f"import os\nfor i in range(300): os.mkdir('{secret('folder')}' + str(i) * 60)")
        run(f"print('{secret('output')}')\n'{secret('value')}' * 99")
    session = sandbox.open_session(kind="bare")
    for _ in range(5):
        assert (
            session.run_cell(f"y = '{secret('cell')}'\nprint(y * 99)\ny", TIMEOUT_S, "planting").outcome
            == "ok"
        )
        assert (
            session.run_cell(f"open('{secret('cellfile')}', 'w').write(y)", TIMEOUT_S, "cell").outcome == "ok"
        )
    session.close()


def _scan(sandbox: Sandbox, in_session: bool) -> str:
    if in_session:
        session = sandbox.open_session(kind="bare")
        result = session.run_cell(_SCAN, TIMEOUT_S, "scan")
        session.close()
    else:
        # The cell's source is short, so that it does not overwrite the memory that the scan searches.
        code = "import sys\nexec(sys.stdin.read())"
        result = sandbox.run(RunRequest(code=code, stdin=_SCAN, timeout_s=TIMEOUT_S), "scan")
    assert result.outcome == "ok", result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("in_session", [False, True], ids=["program", "session"])
def test_nothing_of_earlier_programs_is_in_the_memory_of_a_later_one(
    worker: ThisUser | OrdinaryUser, in_session: bool
) -> None:
    worker.do(_plant)
    marks = worker.do(_scan, in_session).split()
    current_mark = f"{_MARK}-own-{'f' * 16}"
    assert current_mark in marks, "the scan did not find the mark of the scanning program"
    assert {re.split("-", word)[1] for word in marks if word != current_mark} == set()


_FOLDERS = ("/box", "/tmp", "/var/tmp", "/dev/shm", "/.scratch", "/.preload")
_CHANGE_FOLDERS = """
import os
for folder in folders:
    try:
        os.utime(folder, (12345, 12345))
        os.chmod(folder, 0)
    except OSError: pass
"""
_LOOK_AT_FOLDERS = """
import os
for folder in folders:
    found = os.stat(folder)
    print(folder, oct(found.st_mode), 12345 in (found.st_mtime, found.st_atime))
"""


@pytest.mark.parametrize("user", ["strict", "strict_user"])
def test_what_a_program_changes_of_the_folders_themselves_is_not_seen_by_the_next(
    request: pytest.FixtureRequest, user: str
) -> None:
    worker = request.getfixturevalue(user)

    def run(code: str) -> str:
        program = RunRequest(code=f"folders = {_FOLDERS}\n{code}", timeout_s=TIMEOUT_S)
        return str(worker.run(program, "a").stdout)

    before = run(_LOOK_AT_FOLDERS)
    assert "True" not in before
    # Repeat with a word in the code that gives the program a separate scratch space.
    for more in ("", "# /proc"):
        run(_CHANGE_FOLDERS + more)
        assert run(_LOOK_AT_FOLDERS) == before
        assert run("for folder in folders[:4]: open(folder + '/f', 'w')\nprint('written')") == "written\n"


def _start_with_folder_below_tmp(folder: Path, tier: Isolation) -> Sandbox:
    bound = folder / "bound" / "deep"
    bound.mkdir(parents=True)
    jail_specs = tiers.jail_specs

    def specs_with_folder(*arguments: Any) -> list[JailSpec]:
        return [
            {**spec, "bound_paths": [*spec["bound_paths"], str(bound)]} for spec in jail_specs(*arguments)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "jail_specs", specs_with_folder)
        return start_sandbox(folder, tier)


@pytest.mark.slow
def test_a_program_cannot_change_the_folders_that_lead_to_bound_ones(strict_user: OrdinaryUser) -> None:
    del strict_user  # Only for its skip.
    worker = OrdinaryUser("strict", _start_with_folder_below_tmp)
    code = """
import glob, os
[bound] = glob.glob('/tmp/*/bound/deep')
inner, outer = os.path.dirname(bound), os.path.dirname(os.path.dirname(bound))
def tries(act, *arguments):
    try: act(*arguments)
    except OSError: return False
    return True
for folder in (inner, outer):
    print(tries(os.rename, folder, folder + 'x'), tries(os.chmod, folder, 0), tries(os.utime, folder, (1, 1)))
print(os.path.isdir(bound), tries(open, '/tmp/own', 'w'))
"""
    for _ in range(2):
        result = worker.run(RunRequest(code=code, timeout_s=TIMEOUT_S), "a")
        assert result.stdout == "False False False\n" * 2 + "True True\n"
    worker.close()
