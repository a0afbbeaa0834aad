"""Attack programs of this repository's own, at least two of every class, and honest ones beside them."""

from __future__ import annotations

import os

from sandbox_cases import Case

FAILED = ("runtime_error", "killed", "memory", "timeout")
ANY = ("ok", "output_limit", *FAILED)
PROCESSES = "starts processes, which the landlock tier refuses"
SPACE = "needs a private file system, which the landlock tier has not"

_LIMIT_S = 0.7
"""The limit of programs that may run into it."""
_AMPLE_S = 30.0
"""The limit of programs that must not run into it, however busy the machine is."""
_SOON_S = 6.0
"""How long a program may take that has to be ended from outside, on a busy machine."""

CASES: list[Case] = []
NOT_IN_LANDLOCK: dict[str, str] = {}
"""Case id → why the landlock tier cannot be held to it."""


def case(
    name: str,
    code: str,
    status: tuple[str, ...] | str = "ok",
    printed: str | None = None,
    *,
    has: str | None = None,
    within: float | None = None,
    checks: tuple[str, ...] = (),
    stdin: str = "",
    strict_only: str = "",
) -> None:
    """Add a case. `name` is class/what; what got out prints PWNED, which no case may print."""
    wanted = [status] if isinstance(status, str) else list(status)
    expect = {
        "status_any": wanted,
        "stdout_eq": printed,
        "stdout_has": has,
        "stdout_lacks": ["PWNED"],
        "wall_max_s": within,
        "checks": list(checks),
    }
    limit = _LIMIT_S if "timeout" in wanted else _AMPLE_S
    CASES.append(Case(name, name.split("/")[0], code.strip() + "\n", stdin, expect, limit, 256))
    if strict_only:
        NOT_IN_LANDLOCK[name] = strict_only


def attempt(name: str, statement: str, header: str = "import os", **options: object) -> None:
    """Add a case in which one statement must raise OSError or the like."""
    body = f"try:\n    {statement}\n    print('PWNED')\nexcept Exception:\n    print('blocked')"
    case(name, f"{header}\n{body}", "ok", "blocked\n", **options)  # type: ignore[arg-type]


# Secrets.
attempt("secret/file", "open('@@SECRET_FILE@@').read()")
attempt("secret/other task", "open('@@TASK_DIR@@/data.txt').read()")
attempt("secret/shadow", "open('/etc/shadow').read()")
attempt("secret/worker memory", "open('/proc/@@PID@@/mem', 'rb').read(1)")
attempt("secret/worker environment", "open('/proc/@@PID@@/environ').read()")
attempt("secret/hard link", "os.link('@@SECRET_FILE@@', 'mine')")
case(
    "secret/whole environment",
    """
import os, subprocess
text = str(dict(os.environ))
try: text += open('/proc/self/environ').read()
except OSError: pass
print('PWNED' if 'CANARY' in text or 'RSTAR2' in text else 'clean')
""",
    "ok",
    "clean\n",
)
case(
    "secret/other processes",
    """
import os
mine = {'self', 'thread-self', 'sys'}
try: seen = [p for p in os.listdir('/proc') if p.isdigit()]
except OSError: seen = []
def text(p):
    try: return open(f'/proc/{p}/environ', 'rb').read() + open(f'/proc/{p}/cmdline', 'rb').read()
    except OSError: return b''
print('PWNED' if any(b'CANARY' in text(p) or b'pytest' in text(p) for p in seen) else 'clean')
""",
    "ok",
    "clean\n",
)
case(
    "secret/open descriptors",
    """
import os
found = []
for fd in range(3, 300):
    try: found.append((fd, os.fstat(fd).st_mode & 0o170000))
    except OSError: pass
print('PWNED' if [f for f in found if f[0] != 3] or any(m == 0o140000 for _, m in found) else 'clean')
""",
    "ok",
    "clean\n",
)
case(
    "secret/objects in memory",
    """
import gc, sys
hidden = [m for m in sys.modules if m.startswith('rstar2')]
sockets = [o for o in gc.get_objects() if type(o).__name__ == 'socket']
print('PWNED' if hidden or sockets else 'clean')
""",
    "ok",
    "clean\n",
)

# Writing outside.
attempt("write/outside", "open('@@OUTSIDE_DIR@@/x', 'w')", checks=("outside_clean",))
attempt("write/secret", "open('@@SECRET_FILE@@', 'a').write('x')", checks=("secret_intact",))
attempt(
    "write/secret by rename", "os.replace('@@SECRET_FILE@@', '@@OUTSIDE_DIR@@/y')", checks=("secret_intact",)
)
attempt("write/library", "open(os.__file__, 'a')")
attempt("write/package", "open(os.path.join(os.path.dirname(os.__file__), 'evil.py'), 'w')")
attempt("write/device", "os.mknod('disk', 0o60600, os.makedev(8, 0))")
attempt("write/etc", "open('/etc/evil', 'w')")
attempt("write/kernel", "open('/proc/sys/kernel/core_pattern', 'w').write('x')")
case(
    "write/shared memory",
    """
for place in ('/dev/shm', '/tmp', '/var/tmp'):
    try: open(place + '/rstar2_leftover', 'w').write('1')
    except OSError: pass
print('done')
""",
    "ok",
    "done\n",
    checks=("no_leftover",),
)

case(
    "write/attributes",
    """
import os
for change in (lambda: os.chmod('@@SECRET_FILE@@', 0o777), lambda: os.chown('@@SECRET_FILE@@', 12, 12)):
    try: change()
    except OSError: pass
print('done')
""",
    "ok",
    "done\n",
    checks=("secret_intact",),
)

# Symbolic links.
attempt(
    "symlink/to secret",
    "os.symlink('@@SECRET_FILE@@', 'link'); open('link').read()",
    checks=("secret_intact",),
)
attempt(
    "symlink/folder outside",
    "os.symlink('@@OUTSIDE_DIR@@', 'out'); open('out/x', 'w').write('1')",
    checks=("outside_clean",),
)
attempt("symlink/through descriptors", "open('/proc/self/fd/../../1/environ').read()")
attempt("symlink/root of parent", "os.listdir('/proc/@@PID@@/root')")
case(
    "symlink/left for the cleaner",
    """
import os
os.makedirs('a/b')
os.symlink('@@OUTSIDE_DIR@@', 'a/b/out'); os.symlink('/', 'root'); os.symlink('loop', 'loop')
os.mkfifo('pipe'); os.chmod('a', 0)
print('done')
""",
    "ok",
    "done\n",
    checks=("outside_clean", "no_leftover", "worker_ok"),
)

# The network.
case(
    "network/tcp",
    """
import socket
for make in (lambda: socket.create_connection(('127.0.0.1', @@PORT@@), 1),
             lambda: socket.create_connection(('1.1.1.1', 53), 1),
             lambda: socket.create_server(('0.0.0.0', 0))):
    try: make(); print('PWNED')
    except OSError: print('blocked')
""",
    "ok",
    "blocked\n" * 3,
    within=_SOON_S,
    checks=("listener_untouched",),
)
attempt(
    "network/udp",
    "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @@PORT@@))",
    "import socket",
    checks=("udp_untouched",),
)
attempt("network/local socket", "socket.socket(socket.AF_UNIX).connect('@@UNIX_SOCK@@')", "import socket")
attempt(
    "network/local datagram",
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '@@UNIX_SOCK@@')",
    "import socket",
)
attempt("network/netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)", "import socket")
attempt("network/vsock", "socket.socket(40, socket.SOCK_STREAM)", "import socket")
attempt("network/names", "socket.gethostbyname('example.org')", "import socket", within=_SOON_S)
attempt(
    "network/url", "urllib.request.urlopen('http://127.0.0.1:@@PORT@@/', timeout=1)", "import urllib.request"
)

# Bombs.
case(
    "fork/bomb",
    """
import os
while True:
    try: os.fork()
    except OSError: pass
""",
    ("timeout", "killed"),
    within=_SOON_S,
    checks=("no_survivors", "worker_ok"),
    strict_only=PROCESSES,
)
case(
    "fork/wide",
    """
import os, time
made = 0
try:
    for _ in range(2000):
        if os.fork() == 0: time.sleep(30); os._exit(0)
        made += 1
    print('PWNED', made)
except OSError: print('capped')
""",
    ANY,
    within=_SOON_S,
    checks=("no_survivors", "worker_ok"),
)
case(
    "fork/threads",
    """
import threading, time
made = 0
try:
    for _ in range(3000):
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start(); made += 1
    print('PWNED', made)
except (RuntimeError, MemoryError): print('capped')
""",
    ANY,
    within=_SOON_S,
    checks=("no_survivors", "worker_ok"),
)
case("memory/list", "x = [0]\nwhile True: x += x", ("memory", "killed"), checks=("worker_ok",))
case("memory/bytes", "x = b'x' * (4 << 30)\nprint('PWNED')", ("memory", "killed"), checks=("worker_ok",))
case(
    "memory/numpy",
    "import numpy as np\nx = np.ones(1 << 30)\nprint('PWNED')",
    ("memory", "killed"),
    checks=("worker_ok",),
)
case(
    "memory/shared mapping",
    """
import mmap
m = mmap.mmap(-1, 1500 << 20)
b = bytes(1 << 20)
for i in range(0, len(m), 1 << 20): m[i:i + len(b)] = b
print('PWNED')
""",
    ("memory", "killed", "runtime_error"),
    checks=("worker_ok",),
)
case(
    "memory/in children",
    """
import os, time
for _ in range(4):
    if os.fork() == 0:
        x = [bytearray(1 << 20) for _ in range(400)]
        time.sleep(.4); print('PWNED', flush=True); os._exit(0)
for _ in range(4): os.wait()
""",
    ANY,
    checks=("worker_ok", "no_survivors"),
    strict_only=PROCESSES,
)
case("memory/integer", "x = 10\nwhile True: x = x * x", ("memory", "timeout", "killed"), within=_SOON_S)
case(
    "disk/one file",
    """
try:
    with open('big', 'wb') as file:
        for _ in range(4096): file.write(bytes(1 << 20))
    print('PWNED')
except OSError: print('capped')
""",
    ANY,
    within=_SOON_S,
    checks=("worker_ok", "no_leftover"),
)
case(
    "disk/many files",
    """
try:
    for i in range(10**6): open(f'f{i}', 'w').close()
    print('PWNED')
except OSError: print('capped')
""",
    "ok",
    "capped\n",
    within=_SOON_S,
    checks=("worker_ok",),
    strict_only=SPACE,
)
attempt("disk/sparse", "os.truncate(os.open('s', os.O_CREAT | os.O_RDWR), 1 << 42)")
case(
    "disk/deep folders",
    """
import os
try:
    while True: os.mkdir('d'); os.chdir('d')
except OSError: print('capped')
""",
    ("ok", "timeout"),
    within=_SOON_S,
    checks=("worker_ok", "no_leftover"),
    strict_only=SPACE,
)
case(
    "descriptors/bomb",
    """
import os
held = []
try:
    while True: held += os.pipe()
except OSError: print('capped' if len(held) < 4096 else 'PWNED')
""",
    "ok",
    "capped\n",
    checks=("worker_ok",),
)

# Output.
case(
    "output/endless",
    "while True: print('x' * 1000)",
    ("output_limit", "timeout"),
    within=_SOON_S,
    checks=("worker_ok",),
)
case(
    "output/endless errors",
    "import sys\nwhile True: sys.stderr.write('x' * 100000)",
    ("output_limit", "timeout"),
    within=_SOON_S,
    checks=("worker_ok",),
)
case("output/not UTF-8", "import sys\nsys.stdout.buffer.write(b'a\\xff\\xfeb\\n')", "ok", "a\ufffd\ufffdb\n")
case("output/surrogate", "print('\\ud800')", "runtime_error")
case("output/NUL", "print('a\\0b')", "ok", "a\0b\n")
case(
    "output/slow",
    "import time\nfor i in range(99): print(i, flush=True); time.sleep(.1)",
    "timeout",
    has="0\n1\n",
)
case("output/partial line", "import sys\nsys.stdout.write('no newline')", "ok", "no newline")
case(
    "output/closed",
    "import os\nprint('kept', flush=True)\nos.close(1); os.close(2); os.close(3)\n1",
    ANY,
    "kept\n",
    checks=("worker_ok",),
)
case(
    "output/replaced", "import sys\nprint('kept', flush=True)\nsys.stdout = sys.stderr = None", ANY, "kept\n"
)

# Loops, sleeps and signals.
case("loop/python", "while True: pass", "timeout", within=_SOON_S)
case("loop/power", "print(7 ** 10**9 % 10)", ("timeout", "memory", "killed"), within=_SOON_S)
case(
    "loop/digits",
    "import sys\nsys.set_int_max_str_digits(0)\nstr(3 ** 10**8)",
    ("timeout", "memory"),
    within=_SOON_S,
)
case("loop/pattern", "import re\nre.match('(x+x+)+y', 'x' * 60)", "timeout", within=_SOON_S)
case("loop/sum", "sum(iter(int, 1))", "timeout", within=_SOON_S)
case("loop/numpy", "import numpy as np\na = np.eye(900)\nwhile True: a = a @ a", "timeout", within=_SOON_S)
case(
    "loop/lock",
    "import threading\nthreading.Lock().acquire() and threading.Event().wait()",
    "timeout",
    within=_SOON_S,
)
case("loop/read", "import os\nr, w = os.pipe()\nos.read(r, 1)", "timeout", within=_SOON_S)
case(
    "loop/thread at exit",
    "import threading\nprint('out')\nthreading.Thread(target=lambda: exec('while True: pass')).start()",
    "timeout",
    "out\n",
    within=_SOON_S,
)
case(
    "signal/all ignored",
    """
import signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
    "timeout",
    within=_SOON_S,
    checks=("worker_ok",),
)
case(
    "signal/stop self",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    ("timeout", "runtime_error", "killed"),
    within=_SOON_S,
)
case("signal/kill self", "import os\nos.kill(os.getpid(), 9)\nprint('PWNED')", ("killed", "runtime_error"))
case(
    "signal/kill everyone",
    """
import os, signal
for target in (-1, os.getppid(), @@PID@@, 1):
    if target == os.getpid(): continue
    try: os.kill(target, signal.SIGKILL)
    except OSError: pass
print('done')
""",
    ANY,
    checks=("worker_ok",),
)
case(
    "signal/stop the group",
    "import os, signal\ntry: os.killpg(0, signal.SIGSTOP)\nexcept OSError: print('blocked')",
    ANY,
    within=_SOON_S,
    checks=("worker_ok",),
)
case(
    "signal/alarm",
    "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, .2)\ntime.sleep(20)",
    "killed",
    within=_SOON_S,
)

# The kernel.
_LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)"
for _name, _call in {
    "trace parent": "libc.ptrace(16, os.getppid() or 1, 0, 0)",
    "trace worker": "libc.ptrace(16, @@PID@@, 0, 0)",
    "read worker": "libc.syscall(310, @@PID@@, 0, 0, 0, 0, 0)",
    "mount": "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)",
    "user namespace": "libc.unshare(0x10000000)",
    "namespace by clone": "libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "clone for the parent": "libc.syscall(56, 0x8000 | 17, 0, 0, 0, 0)",
    "limits of the worker": "libc.syscall(302, @@PID@@, 4, 0, ctypes.create_string_buffer(16))",
    "priority of the worker": "libc.setpriority(0, @@PID@@, 19)",
    "clone3": "libc.syscall(435, 0, 0)",
    "bpf": "libc.syscall(321, 0, 0, 0)",
    "io_uring": "libc.syscall(425, 1, ctypes.create_string_buffer(256))",
    "keyring": "libc.syscall(250, 0, -3, 0, 0, 0)",
    "userfaultfd": "libc.syscall(323, 0)",
    "perf": "libc.syscall(298, ctypes.create_string_buffer(256), 0, -1, -1, 0)",
    "handles": "libc.syscall(304, -100, 0, 0)",
    "change root": "libc.chroot(b'/tmp')",
    "root user": "libc.setuid(0) if os.getuid() else -1",
    "module": "libc.syscall(313, 0, b'', 0)",
    "reboot": "libc.syscall(169, 0, 0, 0, 0)",
    "clock": "libc.settimeofday(ctypes.create_string_buffer(16), None)",
    "terminal": "libc.ioctl(0, 0x5412, b'x')",
}.items():
    if "syscall(" in _call and os.uname().machine != "x86_64":
        continue  # The numbers are those of x86-64.
    case(f"kernel/{_name}", f"{_LIBC}\nprint('blocked' if ({_call}) < 0 else 'PWNED')", "ok", "blocked\n")

case(
    "kernel/foreign call",
    f"{_LIBC}\nlibc.syscall(0x40000000 + 39)\nprint('PWNED')",
    ("killed", "runtime_error"),
)

# Spoofed results.
case(
    "spoof/every descriptor",
    """
import os
for fd in range(3, 256):
    for forged in (b'v"PWNED"', b'{"outcome": "ok"}', b'\\xfb\\xda\\x06status\\xe9\\0\\0\\0\\0'):
        try: os.write(fd, forged)
        except OSError: pass
raise SystemExit(1)
""",
    "runtime_error",
    checks=("worker_ok",),
)
case("spoof/exit code", "print('out', flush=True)\nimport os\nos._exit(7)", "runtime_error", "out\n")
case("spoof/exit text", "import sys\nsys.exit('a message')", "runtime_error", "")
case("spoof/exit at exit", "import atexit, os\natexit.register(os._exit, 3)", "runtime_error")
case("spoof/value flood", "'x' * (8 << 20)", "ok", "")
case("spoof/bad repr", "class A:\n    def __repr__(self): raise ValueError\nA()", "runtime_error")
case(
    "spoof/no leave",
    "import os, sys\nos._exit = sys.exit = exit = quit = lambda *a: None\nraise ValueError",
    "runtime_error",
)
case(
    "spoof/own hook",
    "import sys\nsys.excepthook = lambda *a: print('mine')\n1 / 0",
    "runtime_error",
    "mine\n",
)
case(
    "spoof/frames",
    """
import sys
frame = sys._getframe()
while frame:
    for name, value in list(frame.f_locals.items()) + list(frame.f_globals.items()):
        if type(value).__name__ in ('Zygote', 'socket'): print('PWNED', name)
    frame = frame.f_back
""",
    "ok",
    "",
)

# What would reach the next run.
case(
    "poison/built-ins",
    """
import builtins, math, sys, os
builtins.print = builtins.len = lambda *a: 7
math.pi = 3
sys.path.insert(0, '/tmp/evil'); sys.modules['random'] = None
os.environ['X'] = '/tmp/evil'
sys.setrecursionlimit(50)
""",
    "ok",
    checks=("next_clean", "worker_ok"),
)
case(
    "poison/module in work folder",
    """
open('math.py', 'w').write('pi = 3')
open('os.py', 'w').write('')
open('sitecustomize.py', 'w').write('')
""",
    "ok",
    checks=("next_clean",),
)
case(
    "poison/limits",
    """
import resource, os, gc
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
gc.disable()
os.umask(0o777)
""",
    "ok",
    checks=("next_clean", "worker_ok"),
)
case(
    "poison/numpy",
    "import numpy as np\nnp.array = None\nnp.random.seed(1)",
    "ok",
    checks=("next_numpy_clean",),
)

# Daemons.
case(
    "daemon/holds the pipe",
    "import os, time\nprint('a', flush=True)\nif os.fork() == 0:\n    time.sleep(60)",
    "ok",
    "a\n",
    within=_SOON_S,
    checks=("no_survivors",),
    strict_only=PROCESSES,
)
case(
    "daemon/twice forked",
    """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3): os.close(fd)
        time.sleep(60)
    os._exit(0)
os.wait()
print('gone')
""",
    "ok",
    "gone\n",
    within=_SOON_S,
    checks=("no_survivors",),
    strict_only=PROCESSES,
)
case(
    "daemon/shell",
    "import subprocess\nsubprocess.Popen('sleep 60 & sleep 61', shell=True)\nprint('x')",
    "ok",
    "x\n",
    within=_SOON_S,
    checks=("no_survivors",),
    strict_only=PROCESSES,
)

# Crashes.
case("crash/null", "import ctypes\nctypes.string_at(0)", ("killed", "runtime_error"), checks=("worker_ok",))
case("crash/abort", "import os\nos.abort()", ("killed", "runtime_error"), checks=("worker_ok",))
case(
    "crash/native stack",
    """
import sys
sys.setrecursionlimit(10**6)
class A:
    def __getattr__(self, n): return getattr(self, n)
A().x
""",
    FAILED,
    within=_SOON_S,
    checks=("worker_ok",),
)
case("crash/recursion", "def f(): f()\nf()", "runtime_error")
case("crash/divide", "1 / 0", "runtime_error", "")
case(
    "crash/code object",
    "f = lambda: 0\nf.__code__ = f.__code__.replace(co_code=bytes(range(1, 255)), co_stacksize=1)\nf()",
    ANY,
    within=_SOON_S,
    checks=("worker_ok",),
)

# Odd input.
case("odd/empty", "", "ok", "")
case("odd/comment", "# nothing", "ok", "")
case("odd/byte order mark", "\ufeffprint('bom')", "ok", "bom\n")
case("odd/carriage returns", "x = 1\r\nif x:\r\n    print('crlf')\r\n", "ok", "crlf\n")
case("odd/syntax", "print('a'\nprint('b')", "runtime_error", "")
case("odd/tabs", "if 1:\n\tx = 1\n        y = 2", "runtime_error", "")
case("odd/nesting", "(" * 300 + ")" * 300, "runtime_error", checks=("worker_ok",))
case(
    "odd/minus signs",
    "x = " + "-" * 100_000 + "1",
    ("runtime_error", "memory", "killed"),
    checks=("worker_ok",),
)
case("odd/attributes", "x = a" + ".a" * 100_000, ("runtime_error", "memory", "killed"), checks=("worker_ok",))
case("odd/long line", "print(len('" + "x" * 900_000 + "'))", "ok", "900000\n")
case(
    "odd/future",
    "from __future__ import annotations\ndef f(x: Nothing): pass\nprint(f.__annotations__)",
    "ok",
)
case("odd/main", "import __main__\nx = 5\nprint(__name__, __main__.x)", "ok", "__main__ 5\n")
case("odd/pickle", "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A)).__name__)", "ok", "A\n")
case("odd/big input", "import sys\nprint(len(sys.stdin.read()))", "ok", "6000000\n", stdin="ab\n" * 2_000_000)
case("odd/input unread", "print('x')", "ok", "x\n", stdin="y" * 300_000)
case("odd/lines of input", "print(input()[::-1], input())", "ok", "é1 2\n", stdin="1é\n2")
case("odd/no input", "input()", "runtime_error", within=_SOON_S)
case("odd/names", "ä = 1\nprint(ä, '数学')", "ok", "1 数学\n")
case("odd/exit", "print('a')\nexit()", "ok", "a\n")
case(
    "odd/source",
    "import inspect\ndef f(): return 1\nprint(inspect.getsource(f), end='')",
    "ok",
    "def f(): return 1\n",
)
case("odd/own file", "print(open(__file__).read()[:5])", "ok", "print\n")

# Honest programs.
case(
    "honest/exit handler",
    "import atexit\natexit.register(print, 'last')\nprint('first')",
    "ok",
    "first\nlast\n",
)
case(
    "honest/threads",
    "from concurrent.futures import *\nprint(*ThreadPoolExecutor(8).map(abs, [-1, 2]))",
    "ok",
    "1 2\n",
)
case(
    "honest/pool",
    "from multiprocessing import Pool\ndef f(x): return x * x\nwith Pool(3) as p: print(p.map(f, range(4)))",
    "ok",
    "[0, 1, 4, 9]\n",
    strict_only=PROCESSES,
)
case(
    "honest/executor",
    """
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(2) as p: print(*p.map(abs, [-3]))
""",
    "ok",
    "3\n",
    strict_only=PROCESSES,
)
case(
    "honest/spawn",
    """
import multiprocessing as mp
def f(x): return x + 1
if __name__ == '__main__':
    with mp.get_context('spawn').Pool(1) as p: print(p.map(f, [1]))
""",
    "ok",
    "[2]\n",
    strict_only=PROCESSES,
)
case(
    "honest/shared array",
    """
from multiprocessing import Process, Queue, Value
def f(q, v):
    with v.get_lock(): v.value += 1
    q.put('x')
q, v = Queue(), Value('i', 0)
ps = [Process(target=f, args=(q, v)) for _ in range(2)]
[p.start() for p in ps]; [p.join() for p in ps]
print(q.get(), q.get(), v.value)
""",
    "ok",
    "x x 2\n",
    strict_only=PROCESSES,
)
case(
    "honest/shell",
    "import subprocess\nprint(subprocess.getoutput('echo hi'))",
    "ok",
    "hi\n",
    strict_only=PROCESSES,
)
case(
    "honest/interpreter",
    """
import subprocess, sys
print(subprocess.run([sys.executable, '-c', 'print(1+1)'], capture_output=True).stdout)
""",
    "ok",
    "b'2\\n'\n",
    strict_only=PROCESSES,
)
case("honest/async", "import asyncio\nasync def f(): return 3\nprint(asyncio.run(f()))", "ok", "3\n")
case(
    "honest/files", "open('a', 'w').write('x')\nprint(open('a').read())", "ok", "x\n", checks=("no_leftover",)
)
case(
    "honest/temporary",
    "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as f: f.write('t'); f.seek(0); print(f.read())",
    "ok",
    "t\n",
)
case("honest/numpy", "import numpy as np\nprint(np.linalg.inv(np.eye(2) * 4).sum())", "ok", "0.5\n")
case(
    "honest/sympy",
    "from sympy import *\nx = symbols('x')\nprint(solve(x**2 - 2))",
    "ok",
    "[-sqrt(2), sqrt(2)]\n",
)
case(
    "honest/scipy",
    "import scipy.integrate as i\nprint(round(i.quad(lambda x: x, 0, 2)[0], 6))",
    "ok",
    "2.0\n",
)
case("honest/mpmath", "import mpmath\nmpmath.mp.dps = 20\nprint(mpmath.pi)", "ok", "3.1415926535897932385\n")
case(
    "honest/plot",
    """
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.title('$x^2$')
plt.savefig('p.png')
plt.show()
print('ok')
""",
    "ok",
    "ok\n",
)
case(
    "honest/recursion",
    "import sys\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(15000))",
)
case(
    "honest/deep native",
    "import sys\nsys.setrecursionlimit(50000)\nx = []\nfor _ in range(20000): x = [x]\nrepr(x)\n0",
)
case("honest/cores", "import os\nprint(os.cpu_count() >= 1)", "ok", "True\n")
case(
    "honest/time",
    "import time, datetime\nprint(time.time() > 1.6e9, datetime.date.today().year > 2023)",
    "ok",
)
case("honest/user", "import getpass, pathlib\ngetpass.getuser(); pathlib.Path.home(); print(1)", "ok", "1\n")
case("honest/big data", "x = list(range(3_000_000))\nprint(sum(x))", "ok", "4499998500000\n")
