"""Attack programs that try to reach secrets, files, the network, the kernel and the results of other programs."""

from __future__ import annotations

import os

from sandbox_own import PROCESSES, SOON_S, attempt, case

# Secrets.
attempt("secret/file", "open('@@SECRET_FILE@@').read()")
attempt("secret/other task", "open('@@TASK_DIR@@/data.txt').read()")
attempt("secret/shadow", "open('/etc/shadow').read()")
attempt("secret/worker memory", "open('/proc/@@PID@@/mem', 'rb').read(1)")
attempt("secret/worker environment", "open('/proc/@@PID@@/environ').read()")
attempt("secret/hard link", "os.link('@@SECRET_FILE@@', 'mine')")
# The clock of another process shows how much it computes.
for _clock in ("~@@PID@@ << 3 | 2", "~@@PID@@ << 3"):
    attempt(f"secret/clock {_clock[-1]} of the worker", f"time.clock_gettime({_clock})", "import time")
    attempt(f"secret/resolution of clock {_clock[-1]}", f"time.clock_getres({_clock})", "import time")
attempt(
    "secret/timer on the clock of the worker",
    "assert ctypes.CDLL(None).timer_create(~@@PID@@ << 3 | 2, None, ctypes.byref(ctypes.c_void_p())) == 0",
    "import ctypes",
)
attempt("secret/extended attributes", "os.listxattr(os.__file__)")
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

# Leases make every opener of a file wait, and owners and signals of descriptors reach other processes.
FCNTL = "import array, ctypes, fcntl, os, socket"
attempt("descriptors/lease", "fcntl.fcntl(open(os.__file__), fcntl.F_SETLEASE, fcntl.F_RDLCK)", FCNTL)
attempt(
    "descriptors/exclusive lease", "fcntl.fcntl(open(os.__file__), fcntl.F_SETLEASE, fcntl.F_WRLCK)", FCNTL
)
attempt("descriptors/lease of its own", "fcntl.fcntl(open('f', 'w'), fcntl.F_SETLEASE, fcntl.F_WRLCK)", FCNTL)
attempt(
    "descriptors/folder", "fcntl.fcntl(os.open('/', os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)", FCNTL
)
attempt("descriptors/owner", "fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())", FCNTL)
attempt(
    "descriptors/owner of a kind", "fcntl.fcntl(0, 15, array.array('i', [1, os.getpid()]).tobytes())", FCNTL
)
attempt("descriptors/signal", "fcntl.fcntl(0, fcntl.F_SETSIG, 9)", FCNTL)
attempt("descriptors/async", "fcntl.fcntl(socket.socketpair()[0], fcntl.F_SETFL, 0x2000)", FCNTL)
attempt("descriptors/pipe", "fcntl.fcntl(os.pipe()[0], fcntl.F_SETPIPE_SZ, 1 << 20)", FCNTL)
attempt(
    "descriptors/upper bits", "assert ctypes.CDLL(None).syscall(72, 0, 1 << 32 | 8, os.getpid()) == 0", FCNTL
)
for request in ("0x5452", "0x8901", "0x8902"):
    given = "array.array('i', [os.getpid()]).tobytes()"
    attempt(f"descriptors/{request}", f"fcntl.ioctl(socket.socketpair()[0], {request}, {given})", FCNTL)
case(
    "descriptors/ordinary",
    """
import fcntl, os, socket
one, other = socket.socketpair()
one.setblocking(False)
copy = fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10)
locked = open('f', 'w')
fcntl.lockf(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(os.get_blocking(copy), os.get_inheritable(copy), fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE)
""",
    "ok",
    "False False 0\n",
)
attempt("share/session", "os.setsid()")
attempt("share/priority of a user's processes", "os.setpriority(os.PRIO_USER, 0, 19)")
attempt("share/priority of a group", "os.setpriority(os.PRIO_PGRP, 0, os.nice(0))")
case(
    "share/own priority",
    "import os\nos.nice(1)\nos.setpriority(os.PRIO_PROCESS, 0, 3)\nprint(os.nice(0))",
    "ok",
    "3\n",
)
attempt(
    "share/session of a child",
    "subprocess.Popen(['true'], start_new_session=True)",
    "import subprocess",
    strict_only=PROCESSES,
)
# Scarce kernel objects that are counted per user, or per owner of a namespace.
LIBC = "import ctypes\nlibc = ctypes.CDLL(None)\ndef check(fd):\n    if fd < 0: raise OSError"
attempt("share/inotify", "check(libc.inotify_init1(0))", LIBC)
attempt("share/inotify of old", "check(libc.inotify_init())", LIBC)
attempt("share/syncfs", "check(libc.syncfs(os.open(os.__file__, os.O_RDONLY)))", f"import os\n{LIBC}")
# The page cache of the host's files shows which programs run. Evicting pages slows these programs down.
for _name, _statement in {
    "evicts": "os.posix_fadvise(library, 0, 0, os.POSIX_FADV_DONTNEED)",
    "evicts with the read": "os.preadv(library, [bytearray(1)], 0, 0x80)",
    "reads what is cached": "os.preadv(library, [bytearray(1)], 0, os.RWF_NOWAIT)",
    "reads ahead": "check(libc.readahead(library, 0, 4096))",
    "writes at once": "os.pwritev(os.open('f', os.O_CREAT | os.O_RDWR), [b'x'], 0, os.RWF_DSYNC)",
    "reads the disk": "os.open(os.__file__, os.O_RDONLY | os.O_DIRECT)",
    "reads the disk later": "fcntl.fcntl(library, fcntl.F_SETFL, os.O_DIRECT)",
    "opens for writing at once": "os.open('f', os.O_CREAT | os.O_RDWR | os.O_SYNC)",
    # The kernel adds O_DSYNC to the flags.
    "opens for writing at once by one bit": "os.open('f', os.O_CREAT | os.O_RDWR | os.O_SYNC & ~os.O_DSYNC)",
    "opens for writing data at once": "os.open('f', os.O_CREAT | os.O_RDWR | os.O_DSYNC)",
    "evicts what is mapped": "mapped.madvise(21)",
    "cools what is mapped": "mapped.madvise(20)",
    "merges memory": "mapped.madvise(mmap.MADV_MERGEABLE)",
    "looks what is cached": (
        "check(libc.mincore(ctypes.c_void_p(id(LIBC_PAGE) & -4096), 1, ctypes.create_string_buffer(1)))"
    ),
}.items():
    attempt(
        f"cache/{_name}",
        _statement,
        f"""
import fcntl, mmap, os
{LIBC}
library = os.open(os.__file__, os.O_RDONLY)
mapped = mmap.mmap(library, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
LIBC_PAGE = object()
""",
    )
case(
    "cache/writes out",
    """
import ctypes, os
libc = ctypes.CDLL(None)
# Not even an error tells that there is nothing to write out: the kernel is not asked.
print(libc.fsync(250), libc.fdatasync(250), libc.sync_file_range(250, 0, 0, 0), libc.msync(None, 4096, 4))
""",
    "ok",
    "0 0 0 0\n",
)
# Kernel memory that no limit of a program counts.
case(
    "kernel memory/locks",
    """
import fcntl, os, struct
whole = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
for command in (fcntl.F_SETLK, fcntl.F_SETLKW):
    # The kernel does not look at them, not even whether there is such a file.
    print(fcntl.fcntl(open('f', 'w'), command, whole) == whole, ctypes.CDLL(None).fcntl(250, command, whole))
try: fcntl.fcntl(open('f', 'w'), fcntl.F_OFD_SETLK, whole)
except OSError as error: print(error.strerror)
""".replace("import fcntl", "import ctypes, fcntl"),
    "ok",
    "True 0\nTrue 0\nInvalid argument\n",
)
for _name, _call in {
    "policies": "libc.syscall({'x86_64': 237, 'aarch64': 235}[os.uname().machine], 0, 0, 0, 0, 0, 0)",
    "own policy": "libc.syscall({'x86_64': 238, 'aarch64': 237}[os.uname().machine], 0, 0, 0, 0, 0, 0)",
    "pages in a pipe": "libc.vmsplice(os.pipe()[1], (ctypes.c_void_p * 2)(id(libc), 8), 1, 0)",
    "pages of a file in a pipe": "os.splice(os.open(os.__file__, 0), pipe[1], 64)",
    "pages of another pipe": "libc.tee(pipe[0], os.pipe()[1], 1, 0)",
}.items():
    attempt(
        f"kernel memory/{_name}",
        f"check({_call})",
        f"import os\n{LIBC}\npipe = os.pipe()\nos.write(pipe[1], b'x')",
    )
case(
    "kernel memory/socket buffers",
    """
import socket
one, other = socket.socketpair()
for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
    before = one.getsockopt(socket.SOL_SOCKET, option)
    one.setsockopt(socket.SOL_SOCKET, option, 2 * before)
    print(one.getsockopt(socket.SOL_SOCKET, option) - before)
one.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
print(one.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED))
""",
    "ok",
    "0\n0\n1\n",
)
case(
    "kernel memory/socket buffers by upper bits",
    """
import ctypes, os, socket
libc = ctypes.CDLL(None)
number = {'x86_64': 54, 'aarch64': 208}[os.uname().machine]
one, other = socket.socketpair()
for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
    before = one.getsockopt(socket.SOL_SOCKET, option)
    size = ctypes.byref(ctypes.c_int(2 * before))
    for bits in (1 << 32, -1 << 32):
        libc.syscall(number, one.fileno(), socket.SOL_SOCKET, ctypes.c_long(option | bits), size, 4)
        print(one.getsockopt(socket.SOL_SOCKET, option) - before)
""",
    "ok",
    "0\n" * 4,
)
case(
    "signal/own group by upper bits",
    """
import ctypes, os, signal
libc = ctypes.CDLL(None)
number = {'x86_64': 62, 'aarch64': 129}[os.uname().machine]
signal.signal(signal.SIGUSR1, lambda *arguments: print('PWNED'))
for bits in (0, 1 << 32, -1 << 32): print(libc.syscall(number, ctypes.c_long(bits), signal.SIGUSR1))
# Its own group by name, and a process.
signal.signal(signal.SIGUSR1, lambda *arguments: print('signalled'))
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(-os.getpgrp(), signal.SIGUSR1)
""",
    "ok",
    "-1\n" * 3 + "signalled\n" * 2,
)
if os.uname().machine == "x86_64":
    # CLONE_VM, CLONE_SIGHAND and CLONE_THREAD without CLONE_FILES.
    attempt("share/thread with files of its own", "check(libc.syscall(56, 0x10900, 0, 0, 0, 0))", LIBC)
case(
    "share/pending signals",
    """
import ctypes, os, signal
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
signals = timers = 0
while signals < 2000 and libc.sigqueue(os.getpid(), 40, None) == 0: signals += 1
while timers < 2000 and libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0: timers += 1
print('PWNED' if signals + timers > 1000 else 'capped')
""",
    "ok",
    "capped\n",
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
    within=SOON_S,
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
attempt("network/names", "socket.gethostbyname('example.org')", "import socket", within=SOON_S)
attempt(
    "network/url", "urllib.request.urlopen('http://127.0.0.1:@@PORT@@/', timeout=1)", "import urllib.request"
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

# Changes that would reach the next run.
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
