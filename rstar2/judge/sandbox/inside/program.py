"""Run one program's source as `python main.py` would, in a process that is confined already.

Nothing that is decided about the program depends on what happens in here, except the text of its value.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any

_ONLY_AST = 0x400
NAME = "main.py"
_READERS = ("__file__", "spawn", "forkserver", "inspect", "runpy")
"""Words of programs that may read their own source from its file."""


class Task:
    """One program: its source, the descriptor for its value, and its work folder."""

    def __init__(self, code: str, report_fd: int, place: str) -> None:
        self.code, self.report_fd, self.place = code, report_fd, place


def main(task: Task) -> None:
    """Run the program and leave this process with its exit code. Never returns."""
    code = 1
    try:
        path = f"{task.place}/{NAME}"
        namespace = become_main(path)
        if any(word in task.code for word in _READERS):
            _write_source(path, task.code)
            namespace["__file__"] = path
        code = _run(task, path, namespace)
        code = _wind_up(code)
    finally:
        os._exit(code)


def become_main(path: str) -> dict[str, Any]:
    """Make a fresh __main__, forget the harness, and draw new random numbers."""
    module = type(sys)("__main__")
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    module.__annotations__ = {}
    sys.modules["__main__"] = module
    for name in [name for name in sys.modules if name.startswith("rstar2")]:
        del sys.modules[name]
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(path))
    _reseed()
    return module.__dict__


def _reseed() -> None:
    """Generators are the same in every fork; os.fork() reseeds only the `random` module's own."""
    modules = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "sympy.core.random" in modules:
        modules["sympy.core.random"].seed()
    if "tempfile" in modules:
        modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
        modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined]


def split(source: str, path: str) -> tuple[CodeType | None, CodeType | None]:
    """Compile into the statements and the last bare expression, if there is one."""
    tree: Any = compile(source, path, "exec", _ONLY_AST, dont_inherit=True)
    if not tree.body or type(tree.body[-1]).__name__ != "Expr":
        return compile(tree, path, "exec", dont_inherit=True), None
    import _ast

    last = _ast.Expression(tree.body.pop().value)
    flags = _future_flags(tree)
    body = compile(tree, path, "exec", dont_inherit=True) if tree.body else None
    return body, compile(last, path, "eval", flags, dont_inherit=True)


def _future_flags(tree: Any) -> int:
    """Compiler flags of the module's __future__ imports, which its last expression must share."""
    flags = 0
    for node in tree.body:
        if type(node).__name__ == "ImportFrom" and node.module == "__future__":
            import __future__

            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def _run(task: Task, path: str, namespace: dict[str, Any]) -> int:
    try:
        body, last = split(task.code, path)
        if body is not None:
            exec(body, namespace)
        if last is not None:
            value = eval(last, namespace)
            if value is not None:
                report(task.report_fd, b"v", repr(value))
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its result
        return fail(error, task, path)
    return 0


def report(fd: int, kind: bytes, text: str) -> None:
    """Send the value (or a note of what went wrong) outside. The other end believes none of it."""
    data = memoryview(kind + text.encode("utf-8", "backslashreplace"))
    while data:
        data = data[os.write(fd, data) :]


def fail(error: BaseException, task: Task, path: str) -> int:
    """Show an exception as the interpreter would; the exit code it stands for."""
    if isinstance(error, SystemExit):
        return _exit_code(error.code)
    if isinstance(error, MemoryError):
        os.write(task.report_fd, b"m")
    _write_source(path, task.code)
    sys.stdout.flush()
    error.__traceback__ = _without_harness(error.__traceback__)
    sys.excepthook(type(error), error, error.__traceback__)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _without_harness(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stdout.flush()
    print(code, file=sys.stderr)
    return 1


def _write_source(path: str, source: str) -> None:
    """Lay the source where tracebacks and `inspect` look for it; without it they show less."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(source)
    except OSError:
        return


def _wind_up(code: int) -> int:
    """What the interpreter does at its end: wait for threads, call exit handlers, flush."""
    try:
        sys.stdout.flush()
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # noqa: BLE001 - as above
        error.__traceback__ = _without_harness(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return code or 120
    return code
