"""Hostile and legitimate programs, each with the outcome that it must have."""

from __future__ import annotations

from support.judge.attacks import Case, expectation

PROGRAMS: list[Case] = []

_ENDLESS_S, _AMPLE_S = 1.0, 120.0
"""Time limits in seconds: for programs that may reach it, and for programs that must not reach it on a busy machine."""
_WALL_S = 50.0
"""Time in seconds within which a program with `ends_soon` must end or be killed, even on a busy machine."""


def program(
    name: str,
    must: str,
    code: str,
    status: tuple[str, ...] | str = "ok",
    printed: str | None = None,
    *,
    has: str | None = None,
    ends_soon: bool = False,
    checks: tuple[str, ...] = (),
    stdin: str = "",
) -> None:
    """Add a program.

    Args:
        name: the class of the attack and the name of the program, with a slash between them.
        must: what must be true, as a description for readers.
        code: the program.
        status: the outcomes that it may have.
        printed: the whole standard output.
        has: a part of the standard output.
        ends_soon: whether the program must end within `_WALL_S` seconds.
        checks: checks from outside the sandbox, see `run_case`.
        stdin: the standard input.
    """
    outcomes = [status] if isinstance(status, str) else list(status)
    expect = expectation(outcomes, printed, has, _WALL_S if ends_soon else None, checks)
    limit = _ENDLESS_S if "timeout" in outcomes else _AMPLE_S
    PROGRAMS.append(Case(name, name.split("/")[0], code.strip("\n"), stdin, expect, limit, 512))


program(
    "read_secret/sec_env",
    "environment is a fixed allow-list; no judge/Redis/API variables",
    """
import os
v=[k for k in os.environ if 'CANARY' in k or 'SECRET' in k or 'TOKEN' in k or 'REDIS' in k or 'KEY' in k]
print('PWNED env' if v else 'clean')
""",
    printed="clean\n",
)
program(
    "read_secret/sec_proc1_environ",
    "cannot read a secret out of pid 1's environment",
    """
try:
    d=open('/proc/1/environ','rb').read()
    print('PWNED' if b'CANARY' in d else 'clean')
except OSError: print('clean')
""",
    printed="clean\n",
)
program(
    "read_secret/sec_ppid_environ",
    "judge worker's environ unreadable",
    """
import os
try:
    d=open(f'/proc/{os.getppid()}/environ','rb').read()
    print('PWNED' if b'CANARY' in d else 'clean')
except OSError: print('clean')
""",
    printed="clean\n",
)
program(
    "read_secret/sec_own_initial_environ",
    "a forked zygote keeps the environment of its exec in /proc/self/environ, so no secret may be in it",
    """
d=open('/proc/self/environ','rb').read() if __import__('os').path.exists('/proc/self/environ') else b''
print('PWNED' if b'CANARY' in d else 'clean')
""",
    ("ok", "runtime_error"),
)
program(
    "read_secret/sec_other_task",
    "another task's files (planted in a sibling task dir) are not visible",
    """
import glob,os
hit=0
for root in ('/tmp','/var/tmp','/dev/shm','/home','/root','/srv'):
    for d,ds,fs in os.walk(root):
        if d.count('/')>6: ds[:]=[]
        for f in fs[:200]:
            p=os.path.join(d,f)
            if os.path.abspath(p).startswith(os.getcwd()): continue
            try:
                if b'OTHER_TASK_CANARY' in open(p,'rb').read(65536): hit=1
            except OSError: pass
print('PWNED' if hit else 'clean')
""",
    printed="clean\n",
)
program(
    "write_outside/wr_outside",
    "no writes outside work dir",
    """
import os
try:
    open('@@OUTSIDE_DIR@@/x','w').write('1'); print('PWNED')
except OSError: print('blocked')
""",
    printed="blocked\n",
    checks=("outside_clean",),
)
program(
    "write_outside/wr_tmp",
    "/tmp may be writable but must be private and vanish",
    """
try:
    open('/tmp/rstar2_leftover','w').write('1')
except OSError: pass
print('done')
""",
    printed="done\n",
    checks=("no_leftover",),
)
program(
    "write_outside/wr_truncate_secret",
    "judge-owned file not writable",
    """
try:
    open('@@SECRET_FILE@@','w').write('gone'); print('PWNED')
except OSError: print('blocked')
""",
    printed="blocked\n",
    checks=("secret_intact",),
)
program(
    "spoof/wr_own_source",
    "rewriting own source has no effect on this or a later result",
    """
import os,sys
try:
    p=sys.argv[0]
    if os.path.isfile(p): open(p,'w').write('print(1)')
except OSError: pass
print('done')
""",
    printed="done\n",
)
program(
    "network/net_connect_unix",
    "Redis unix socket unreachable",
    """
import socket
try:
    s=socket.socket(socket.AF_UNIX); s.connect('@@UNIX_SOCK@@'); print('PWNED')
except OSError: print('blocked')
""",
    ("ok", "runtime_error"),
    printed="blocked\n",
    checks=("listener_untouched",),
)
program(
    "network/net_udp",
    "UDP does not reach host",
    """
import socket
try:
    s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.sendto(b'x',('127.0.0.1',@@PORT@@)); print('sent')
except OSError: print('blocked')
""",
    ("ok", "runtime_error"),
    checks=("udp_untouched",),
)
program(
    "network/net_raw_netlink",
    "raw/packet sockets refused",
    """
import socket
r=[]
for a in ((socket.AF_PACKET,socket.SOCK_RAW),(socket.AF_INET,socket.SOCK_RAW)):
    try: socket.socket(*a); r.append('PWNED')
    except OSError: pass
print(*r or ['blocked'])
""",
    printed="blocked\n",
)
program(
    "fork_bomb/res_thread_bomb",
    "threads capped by pids cgroup/RLIMIT_NPROC",
    """
import threading,time
n=0
try:
    for i in range(1000):
        threading.Thread(target=time.sleep,args=(30,),daemon=True).start(); n+=1
    print('PWNED threads',n)
except RuntimeError: print('capped')
""",
    ("ok", "runtime_error", "timeout", "memory", "output_limit", "killed"),
    ends_soon=True,
    checks=("no_survivors",),
)
program(
    "memory/res_mem_list",
    "memory limit enforced; verdict says memory, not success; judge and neighbours live",
    """
x=[]
for i in range(10**9): x.append(bytearray(16<<20))
""",
    ("runtime_error", "memory", "killed", "timeout"),
    ends_soon=True,
    checks=("worker_ok",),
)
program(
    "memory/res_memfd",
    "memfd pages are charged/limited (RLIMIT_FSIZE or cgroup)",
    """
import os
try:
    fd=os.memfd_create('x'); n=0
    for i in range(600): n+=os.write(fd,b'x'*(1<<20))
    print('PWNED' if n>=600<<20 else 'capped')
except OSError: print('capped')
""",
    ("ok", "runtime_error", "timeout", "memory", "output_limit", "killed"),
)
program(
    "output/res_out_slow_drip",
    "timeout verdict keeps partial output",
    """
import time,sys
for i in range(100): print(i,flush=True); time.sleep(0.1)
""",
    "timeout",
    has="0\n1\n2\n",
    ends_soon=True,
)
program(
    "infinite_loop/loop_pow",
    "C-level bignum loop is killed on time",
    "print(pow(7,10**9)%10)",
    ("timeout", "killed", "memory"),
    ends_soon=True,
)
program(
    "infinite_loop/loop_regex",
    "catastrophic regex in C killed on time",
    """
import re
print(re.match(r'(a+)+$','a'*40+'b'))
""",
    "timeout",
    ends_soon=True,
)
program(
    "infinite_loop/loop_numpy",
    "BLAS loop killed",
    """
import numpy as np
a=np.random.rand(1500,1500)
while True: a=a@a; a/=np.abs(a).max()
""",
    "timeout",
    ends_soon=True,
)
program(
    "infinite_loop/loop_sleep",
    "wall-clock limit, not only CPU",
    """
import time
time.sleep(60)
print('PWNED')
""",
    "timeout",
    ends_soon=True,
)
program(
    "infinite_loop/loop_sympy_hard",
    "realistic slow sympy: timeout in time, worker still fine",
    """
from sympy import *
x=symbols('x')
print(integrate(1/(x**13+x**7+sin(x)*exp(x**2)+1),x))
""",
    ("timeout", "ok", "runtime_error"),
    ends_soon=True,
    checks=("worker_ok",),
)
program(
    "signals/sig_kill_parent",
    "parent (worker) survives; result still comes back",
    """
import os,signal
try:
    os.kill(os.getppid(),signal.SIGKILL)
except OSError: pass
print('done')
""",
    ("ok", "runtime_error", "timeout", "memory", "output_limit", "killed"),
    checks=("worker_ok",),
)
program(
    "signals/sig_stop_parent",
    "worker cannot be stopped",
    """
import os,signal
try: os.kill(os.getppid(),signal.SIGSTOP)
except OSError: pass
print('done')
""",
    ("ok", "runtime_error", "timeout", "memory", "output_limit", "killed"),
    ends_soon=True,
    checks=("worker_ok",),
)
program(
    "kernel_surface/krn_mount",
    "mount refused",
    """
import ctypes
l=ctypes.CDLL(None,use_errno=True)
print('PWNED' if l.mount(b'none',b'/tmp',b'tmpfs',0,None)==0 else 'blocked')
""",
    ("ok", "runtime_error"),
    printed="blocked\n",
)
program(
    "kernel_surface/krn_tiocsti",
    "no controlling terminal injection",
    """
import fcntl
try:
    fcntl.ioctl(0,0x5412,b'x'); print('PWNED')
except OSError: print('blocked')
""",
    ("ok", "runtime_error"),
    printed="blocked\n",
)
program(
    "spoof/sp_write_fds",
    "writing to every inherited fd changes nothing",
    r"""
import os,json
m=json.dumps({'success':True,'run_success':True,'stdout':'PWNED','exit_code':0}).encode()+b'\n'
for fd in range(3,64):
    try: os.write(fd,m)
    except OSError: pass
raise SystemExit(1)
""",
    "runtime_error",
    checks=("worker_ok",),
)
program(
    "spoof/sp_atexit_out",
    "atexit output is kept in order, as CPython does",
    """
import atexit
atexit.register(lambda: print('late'))
print('early')
""",
    printed="early\nlate\n",
)
program(
    "daemon/sp_dup_stdout_hold",
    "child holding the pipe open does not delay the verdict to the limit: main exit ends the run",
    """
import os,time
print('a',flush=True)
if os.fork()==0:
    time.sleep(60)
    os._exit(0)
""",
    printed="a\n",
    ends_soon=True,
    checks=("no_survivors",),
)
program(
    "poison/sp_env_poison",
    "environment changes do not reach the next run",
    """
import os
os.environ['PYTHONPATH']='/tmp/evil'
os.environ['PYTHONSTARTUP']='/tmp/evil.py'
os.putenv('LD_PRELOAD','/tmp/evil.so')
print('done')
""",
    printed="done\n",
    checks=("next_clean",),
)
program(
    "odd_output/odd_emoji",
    "UTF-8 output regardless of the locale (LANG=C)",
    "print('π≈3.14 — ✓ 数学 🎉')",
    printed="π≈3.14 — ✓ 数学 🎉\n",
)
program(
    "odd_input/odd_big_stdin",
    "16 MiB stdin passes without deadlock",
    """
import sys
print(len(sys.stdin.read()))
""",
    printed="16777216\n",
    ends_soon=True,
    stdin="x" * 16777216,
)
program(
    "odd_input/odd_input_nostdin",
    "no stdin -> EOFError at once (never hangs)",
    """
x=input()
print(x)
""",
    "runtime_error",
    ends_soon=True,
)
program(
    "odd_input/odd_deep_nest_src",
    "source with 5,000 nested brackets: SyntaxError/MemoryError, no interpreter crash of the worker",
    "(" * 5000 + ")" * 5000,
    ("runtime_error", "killed", "memory"),
    checks=("worker_ok",),
)
program(
    "odd_input/odd_indent_tabs",
    "TabError reported",
    """
if True:
	print(1)
        print(2)
""",
    "runtime_error",
)
program(
    "odd_input/odd_future",
    "__future__ import must work (code-judge's prologue breaks it)",
    """
from __future__ import annotations
def f(x: Undefined): return 1
print(f(1))
""",
    printed="1\n",
)
program(
    "odd_input/odd_main_guard",
    "__name__ is __main__",
    """
if __name__=='__main__':
    print('main')
""",
    printed="main\n",
)
program(
    "odd_input/odd_pickle_main",
    "classes defined in __main__ pickle (module registered)",
    """
import pickle
class A: pass
a=pickle.loads(pickle.dumps(A()))
print(type(a).__name__)
""",
    printed="A\n",
)
program(
    "crash/cr_recursion",
    "native stack overflow -> signal verdict",
    """
import sys
sys.setrecursionlimit(10**9)
def f(): f()
f()
""",
    ("runtime_error", "killed", "memory", "timeout"),
    ends_soon=True,
    checks=("worker_ok",),
)
program(
    "crash/cr_abort",
    "SIGABRT verdict, no core file",
    """
import os
os.abort()
""",
    ("runtime_error", "killed"),
    checks=("worker_ok",),
)
program(
    "crash/cr_exec_shell",
    "subprocess, if allowed, runs as the sandbox uid",
    """
import subprocess
try:
    ran=subprocess.run(['id','-u'],capture_output=True,text=True,timeout=2)
    print('PWNED' if ran.stdout.strip()=='0' else 'nonroot')
except Exception as e: print('nonroot')
""",
    printed="nonroot\n",
)
program(
    "crash/cr_execve",
    "execve replaced process is still confined and timed",
    """
import os
try: os.execv('/bin/sh',['sh','-c','echo hi'])
except OSError: print('hi')
""",
    printed="hi\n",
)
program(
    "legit/ok_numpy",
    "numpy",
    """
import numpy as np
print(np.linalg.inv(np.array([[2.,0],[0,4]])).tolist())
""",
    printed="[[0.5, 0.0], [0.0, 0.25]]\n",
)
program(
    "legit/ok_scipy",
    "scipy",
    """
from scipy.optimize import brentq
print(round(brentq(lambda t:t*t-2,0,2),6))
""",
    printed="1.414214\n",
)
program(
    "legit/ok_pandas",
    "pandas",
    """
import pandas as pd
print(pd.DataFrame({'a':[1,2,3]}).a.sum())
""",
    printed="6\n",
)
program(
    "legit/ok_stdlib",
    "stdlib",
    """
from fractions import Fraction
from itertools import combinations
from decimal import Decimal
from collections import Counter
import functools,math,heapq,bisect,re,json,statistics,datetime
print(Fraction(1,3)+Fraction(1,6), sum(1 for _ in combinations(range(10),3)), math.comb(10,3))
""",
    printed="1/2 120 120\n",
)
program(
    "legit/ok_plot",
    "matplotlib works headless (Agg), plt.show() does not hang",
    """
import matplotlib
import matplotlib.pyplot as plt
plt.plot([1,2]); plt.savefig('a.png'); plt.show(); print('plotted')
""",
    printed="plotted\n",
)
program(
    "legit/ok_hash_time",
    "clock works",
    """
import time
t=time.time(); time.sleep(0.2); print(round(time.time()-t,1)>=0.2)
""",
    printed="True\n",
)
program(
    "legit/ok_recursion_1e4",
    "deep but legal recursion works (stack >= 16 MiB)",
    """
import sys
sys.setrecursionlimit(20000)
def f(n): return 0 if n==0 else 1+f(n-1)
print(f(10000))
""",
    printed="10000\n",
)
