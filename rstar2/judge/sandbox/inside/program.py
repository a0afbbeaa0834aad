"""Runs one program's source, like `python main.py`, in a process that is already confined.

This module reports only two facts about the program: the text of its value, and whether it failed for lack of memory.
The module reports a lack of memory because nobody outside this process sees that an allocation was refused. A report
must contain a nonce, so a program cannot forge a report by simply writing a text to the descriptor. A program can forge
a report by searching this process's memory, or by replacing functions of this module.
"""

from __future__ import annotations

import _ast
import atexit
import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any, NoReturn

    # Kind of the report (empty for no report), its text, and the exception that was raised.
    _End = tuple[bytes, bytes, BaseException | None]

_ONLY_AST = 0x400
NAME = "main.py"
_READERS = ("__file__", "spawn", "forkserver", "inspect", "runpy")
"""If a program contains one of these words, it may read its own source, so the source is written to a file first."""
# Bound here because a program may replace names in modules, and these are needed after it has run.
_exit, _write, _getpid, _run_exit_functions = os._exit, os.write, os.getpid, atexit._run_exitfuncs
# Copied here because a program may replace built-in names, which the functions of this module use.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]
NONCE = 16
HEADER = 1 + NONCE + 4
"""Number of bytes before the text of a report: the kind of the report, the nonce, and the length of the text as a
big-endian integer."""
VALUE_BYTES = (1 << 20) - HEADER
"""Maximum length in bytes of the text of a program's value. Longer texts are cut."""


class Program:
    """One program to run.

    Args:
        code: the nonce for the program's report, and then the program's source.
        report_fd: file descriptor to which the program's report is written.
        work_dir: the folder in which the program runs.
    """

    def __init__(self, code: bytes, report_fd: int, work_dir: str) -> None:
        self._nonce, self.code = code[:NONCE], code[NONCE:].decode(errors="surrogatepass")
        self.report_fd, self.work_dir = report_fd, work_dir
        self._pid = _getpid()

    def run(self) -> NoReturn:
        """Run the program, and end this process with the program's exit code."""
        code = 1
        try:
            # While the program runs, the nonce exists only on this frame's stack, which Python code cannot read.
            code = finalize(self._report(self._take_nonce(), _run(self)), self.code)
        finally:
            _exit(code)

    def _take_nonce(self) -> bytes:
        nonce, self._nonce = self._nonce, b""
        return nonce

    def _report(self, nonce: bytes, end: _End) -> int:
        """Report the program's value or its lack of memory, and print its exception. Returns the exit code."""
        kind, text, error = end
        # A child process that the program forked also gets here, but it must not report.
        if kind and _getpid() == self._pid:
            send_report(self.report_fd, kind, nonce, text)
        del nonce
        if error is None:
            return 0
        if isinstance(error, SystemExit):
            return exit_code(error.code)
        print_exception(error, self.code, f"{self.work_dir}/{NAME}")
        return 130 if isinstance(error, KeyboardInterrupt) else 1


def make_main_module(path: str, source: str | None = None) -> dict[str, Any]:
    """Create a new `__main__` module and reseed random number generators. Returns the module's variables.

    Args:
        path: path of the program's source file.
        source: the program's source. For a session, the source is None, because the sources of its cells are not known
            yet.
    """
    module = type(sys)("__main__")
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    module.__annotations__ = {}
    sys.modules["__main__"] = module
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(path))
    # For speed only: most programs need no reseeding.
    if source is None or "rand" in source or "scipy" in sys.modules:
        _reseed()
    return module.__dict__


def _reseed() -> None:
    """Reseed random number generators that would have the same state in every fork. os.fork() reseeds only `random`."""
    modules = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "sympy.core.random" in modules:
        modules["sympy.core.random"].rng.seed()


def compile_program(source: str, path: str) -> tuple[CodeType | None, CodeType | None]:
    """Compile a program's source.

    Returns two code objects: the program's statements, and its last expression. If the source has no statements or no
    last expression, the corresponding code object is None.
    """
    tree: Any = compile(source, path, "exec", _ONLY_AST, dont_inherit=True)
    if not tree.body or not isinstance(tree.body[-1], _ast.Expr):
        return compile(tree, path, "exec", dont_inherit=True), None
    last = _ast.Expression(tree.body.pop().value)
    flags = _future_flags(tree)
    body = compile(tree, path, "exec", dont_inherit=True) if tree.body else None
    return body, compile(last, path, "eval", flags, dont_inherit=True)


def _future_flags(tree: Any) -> int:
    """Returns the compiler flags of the module's `__future__` imports.

    The last expression of the module must be compiled with the same flags.
    """
    flags = 0
    for node in tree.body:
        if isinstance(node, _ast.ImportFrom) and node.module == "__future__":
            import __future__

            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def execute(source: str, path: str, namespace: dict[str, Any]) -> object:
    """Run a program's source, and do not catch its exceptions. Returns the value of the last expression, or None."""
    body, last = compile_program(source.removeprefix("\ufeff"), path)
    if body is not None:
        exec(body, namespace)
    return None if last is None else eval(last, namespace)


def _run(program: Program) -> _End:
    path = f"{program.work_dir}/{NAME}"
    namespace = make_main_module(path, program.code)
    if any(word in program.code for word in _READERS):
        _write_source(path, program.code)
        namespace["__file__"] = path
    try:
        value = execute(program.code, path, namespace)
        return (b"", b"", None) if value is None else (b"v", repr_bytes(value), None)
    except BaseException as error:  # noqa: BLE001 - every exception of a program is its result
        return (b"m" if isinstance(error, MemoryError) else b""), b"", error


def repr_bytes(value: object) -> bytes:
    """Returns the repr of a value in UTF-8, cut to at most VALUE_BYTES bytes."""
    return str.encode(repr(value), "utf-8", "backslashreplace")[:VALUE_BYTES]


def send_report(fd: int, kind: bytes, nonce: bytes, text: bytes) -> None:
    """Send a report to the worker. Does nothing if the program has closed the descriptor."""
    data = memoryview(kind + nonce + len(text).to_bytes(4, "big") + text)
    try:
        while data:
            data = data[_write(fd, data) :]
    except OSError:
        return


def print_exception(error: BaseException, source: str, path: str) -> None:
    """Print an exception to standard error, with lines of the source, as the interpreter does."""
    _write_source(path, source)
    error.__traceback__ = _without_package_frames(error.__traceback__)
    flush()
    sys.excepthook(type(error), error, error.__traceback__)


def _without_package_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return trace


def exit_code(code: object) -> int:
    """Returns the exit code of a process that raises SystemExit(code). Prints `code` if it is a message."""
    if code is None:
        return 0
    if isinstance(code, int):
        # The interpreter converts the number to a C long. A number that is too large becomes -1.
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    flush()
    print(code, file=sys.stderr)
    return 1


def _write_source(path: str, source: str) -> None:
    """Write the source to the file in which tracebacks and `inspect` look for it. Ignores an OSError."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(source)
    except OSError:
        return


def finalize(code: int, source: str = "") -> int:
    """Wait for threads, call exit handlers and flush the output, as the interpreter does at exit.

    Returns the exit code.
    """
    try:
        # Flushed before the wait for threads, because they may never end.
        flush()
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        _run_exit_functions()
        if "__del__" in source:
            # Drop all global objects, so that their `__del__` runs. Without any `__del__` this would only cost time.
            namespace = sys.modules["__main__"].__dict__
            namespace.update({name: None for name in namespace if not name.startswith("__")})
    except BaseException as error:  # noqa: BLE001 - a program's threads and handlers may raise any exception
        error.__traceback__ = _without_package_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
    # 120 is the interpreter's exit code if it could not write all output.
    return code if flush() else code or 120


def flush() -> bool:
    """Flush standard output and standard error. Returns False if a flush failed."""
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except Exception:  # noqa: BLE001 - the program may have replaced the streams by any object
            flushed = False
    return flushed
