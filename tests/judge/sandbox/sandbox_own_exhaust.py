"""Programs that exhaust, hang, flood, signal, crash, or stay behind."""

from __future__ import annotations

from sandbox_own import ANY, FAILED, PROCESSES, SOON_S, SPACE, attempt, case

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
    within=SOON_S,
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
        if os.fork() == 0: time.sleep(90); os._exit(0)
        made += 1
    print('PWNED', made)
except OSError: print('capped')
""",
    ANY,
    within=SOON_S,
    checks=("no_survivors", "worker_ok"),
)
case(
    "fork/threads",
    """
import threading, time
made = 0
try:
    for _ in range(3000):
        threading.Thread(target=time.sleep, args=(90,), daemon=True).start(); made += 1
    print('PWNED', made)
except (RuntimeError, MemoryError): print('capped')
""",
    ANY,
    within=SOON_S,
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
case("memory/integer", "x = 10\nwhile True: x = x * x", ("memory", "timeout", "killed"), within=SOON_S)
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
    within=SOON_S,
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
    within=SOON_S,
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
    within=SOON_S,
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
    within=SOON_S,
    checks=("worker_ok",),
)
case(
    "output/endless errors",
    "import sys\nwhile True: sys.stderr.write('x' * 100000)",
    ("output_limit", "timeout"),
    within=SOON_S,
    checks=("worker_ok",),
)
case("output/not UTF-8", "import sys\nsys.stdout.buffer.write(b'a\\xff\\xfeb\\n')", "ok", "a\ufffd\ufffdb\n")
case("output/surrogate", "print('\\ud800')", "runtime_error")
case("output/NUL", "print('a\\0b')", "ok", "a\0b\n")
case(
    "output/slow",
    "import time\nfor i in range(9999): print(i, flush=True); time.sleep(.02)",
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
case("loop/python", "while True: pass", "timeout", within=SOON_S)
case("loop/power", "print(7 ** 10**9 % 10)", ("timeout", "memory", "killed"), within=SOON_S)
case(
    "loop/digits",
    "import sys\nsys.set_int_max_str_digits(0)\nstr(3 ** 10**8)",
    ("timeout", "memory"),
    within=SOON_S,
)
case("loop/pattern", "import re\nre.match('(x+x+)+y', 'x' * 60)", "timeout", within=SOON_S)
case("loop/sum", "sum(iter(int, 1))", "timeout", within=SOON_S)
case("loop/numpy", "import numpy as np\na = np.eye(900)\nwhile True: a = a @ a", "timeout", within=SOON_S)
case(
    "loop/lock",
    "import threading\nthreading.Lock().acquire() and threading.Event().wait()",
    "timeout",
    within=SOON_S,
)
case("loop/read", "import os\nr, w = os.pipe()\nos.read(r, 1)", "timeout", within=SOON_S)
case(
    "loop/thread at exit",
    "import threading\nprint('out')\nthreading.Thread(target=lambda: exec('while True: pass')).start()",
    "timeout",
    "out\n",
    within=SOON_S,
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
    within=SOON_S,
    checks=("worker_ok",),
)
case(
    "signal/stop self",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    ("timeout", "runtime_error", "killed"),
    within=SOON_S,
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
    within=SOON_S,
    checks=("worker_ok",),
)
case(
    "signal/alarm",
    "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, .2)\ntime.sleep(90)",
    "killed",
    within=SOON_S,
)

# Daemons.
case(
    "daemon/holds the pipe",
    "import os, time\nprint('a', flush=True)\nif os.fork() == 0:\n    time.sleep(90)",
    "ok",
    "a\n",
    within=SOON_S,
    checks=("no_survivors",),
    strict_only=PROCESSES,
)
case(
    "daemon/twice forked",
    """
import os, time
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        for fd in range(3): os.close(fd)
        time.sleep(90)
    os._exit(0)
os.wait()
print('gone')
""",
    "ok",
    "gone\n",
    within=SOON_S,
    checks=("no_survivors",),
    strict_only=PROCESSES,
)
case(
    "daemon/shell",
    "import subprocess\nsubprocess.Popen('sleep 90 & sleep 91', shell=True)\nprint('x')",
    "ok",
    "x\n",
    within=SOON_S,
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
    within=SOON_S,
    checks=("worker_ok",),
)
case("crash/recursion", "def f(): f()\nf()", "runtime_error")
case("crash/divide", "1 / 0", "runtime_error", "")
case(
    "crash/code object",
    "f = lambda: 0\nf.__code__ = f.__code__.replace(co_code=bytes(range(1, 255)), co_stacksize=1)\nf()",
    ANY,
    within=SOON_S,
    checks=("worker_ok",),
)
