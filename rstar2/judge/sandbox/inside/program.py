"""Runs one program's source as `python main.py` would, in a process that is confined already.

No decision about the program depends on what happens here, except the text of its value, and whether a failure
was for lack of memory: a refused allocation leaves no trace that is visible from outside. Both are in a report
that must carry a nonce, so that forging one takes more than a write; code that searches this process's memory
or replaces functions of this module can do it.
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

    # Kind of the report (empty: none), its text, the exception raised.
    _End = tuple[bytes, bytes, BaseException | None]

_ONLY_AST = 0x400
NAME = "main.py"
_READERS = ("__file__", "spawn", "forkserver", "inspect", "runpy")
"""A program with one of these words may read its own source from its file."""
# A program may replace names in modules, so what is needed after it has run is bound before.
_exit, _write, _getpid, _run_exit_functions = os._exit, os.write, os.getpid, atexit._run_exitfuncs
# The same for the built-in names: the functions of this module look them up here.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]
NONCE = 16
HEADER = 1 + NONCE + 4
"""Bytes before a report's text: its kind, the nonce, and the length of the text, big-endian."""
VALUE_BYTES = (1 << 20) - HEADER
"""A longer value is cut here."""


class Program:
    """One program: the nonce of its report and its source, the descriptor for the report, and its work folder."""

    def __init__(self, code: bytes, report_fd: int, work_dir: str) -> None:
        self._nonce, self.code = code[:NONCE], code[NONCE:].decode(errors="surrogatepass")
        self.report_fd, self.work_dir = report_fd, work_dir
        self._pid = _getpid()

    def run(self) -> NoReturn:
        """Run it and end this process with its exit code."""
        code = 1
        try:
            # While the program runs, the nonce is only on this frame's stack, which no Python code can
            # look at.
            code = finalize(self._report(self._take_nonce(), _run(self)), self.code)
        finally:
            _exit(code)

    def _take_nonce(self) -> bytes:
        nonce, self._nonce = self._nonce, b""
        return nonce

    def _report(self, nonce: bytes, end: _End) -> int:
        """Report the value or the lack of memory, then print what was raised. Returns the exit code."""
        kind, text, error = end
        # A child that the program forked gets here too, and is not the program.
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
    """Make a new __main__ and reseed random number generators. Returns the namespace for the program."""
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
    """Reseed what would be the same in every fork; os.fork() itself reseeds only the `random` module."""
    modules = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "sympy.core.random" in modules:
        modules["sympy.core.random"].rng.seed()


def compile_program(source: str, path: str) -> tuple[CodeType | None, CodeType | None]:
    """Compile into the statements and, if there is one, the last bare expression."""
    tree: Any = compile(source, path, "exec", _ONLY_AST, dont_inherit=True)
    if not tree.body or not isinstance(tree.body[-1], _ast.Expr):
        return compile(tree, path, "exec", dont_inherit=True), None
    last = _ast.Expression(tree.body.pop().value)
    flags = _future_flags(tree)
    body = compile(tree, path, "exec", dont_inherit=True) if tree.body else None
    return body, compile(last, path, "eval", flags, dont_inherit=True)


def _future_flags(tree: Any) -> int:
    """Compiler flags of the module's __future__ imports, which its last expression must share."""
    flags = 0
    for node in tree.body:
        if isinstance(node, _ast.ImportFrom) and node.module == "__future__":
            import __future__

            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def execute(source: str, path: str, namespace: dict[str, Any]) -> object:
    """Run the source. Returns the value of its last bare expression, or None; raises whatever the source raises."""
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
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its result
        return (b"m" if isinstance(error, MemoryError) else b""), b"", error


def repr_bytes(value: object) -> bytes:
    """The beginning of the value's repr as UTF-8."""
    return str.encode(repr(value), "utf-8", "backslashreplace")[:VALUE_BYTES]


def send_report(fd: int, kind: bytes, nonce: bytes, text: bytes) -> None:
    """Send a report outside. Does nothing where the program has closed the descriptor."""
    data = memoryview(kind + nonce + len(text).to_bytes(4, "big") + text)
    try:
        while data:
            data = data[_write(fd, data) :]
    except OSError:
        return


def print_exception(error: BaseException, source: str, path: str) -> None:
    """Print an exception on standard error as the interpreter would, with lines of the source."""
    _write_source(path, source)
    error.__traceback__ = _without_own_frames(error.__traceback__)
    flush()
    sys.excepthook(type(error), error, error.__traceback__)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    return trace


def exit_code(code: object) -> int:
    """The exit code for SystemExit(code); if `code` is a message, print it."""
    if code is None:
        return 0
    if isinstance(code, int):
        # As in C, where a number that is too large becomes -1.
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    flush()
    print(code, file=sys.stderr)
    return 1


def _write_source(path: str, source: str) -> None:
    """Write the source where tracebacks and `inspect` look for it; without it they show less."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(source)
    except OSError:
        return


def finalize(code: int, source: str = "") -> int:
    """Do what the interpreter does at exit: wait for threads, call exit handlers, flush. Returns the exit code."""
    try:
        # Before the threads: if they never end, printed text must have been written already.
        flush()
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        _run_exit_functions()
        if "__del__" in source:
            # The interpreter does this for all objects; for most it would only take time.
            namespace = sys.modules["__main__"].__dict__
            namespace.update({name: None for name in namespace if not name.startswith("__")})
    except BaseException as error:  # noqa: BLE001 - as above
        error.__traceback__ = _without_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
    # 120 is the interpreter's exit code for output that it could not write.
    return code if flush() else code or 120


def flush() -> bool:
    """Flush both output streams, whatever the program has put there; False if that failed."""
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except Exception:  # noqa: BLE001 - the program may have replaced them by anything
            flushed = False
    return flushed
