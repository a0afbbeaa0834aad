"""Odd but innocent input, and honest programs that must simply work."""

from __future__ import annotations

from sandbox_own import PROCESSES, SOON_S, case

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
case("odd/no input", "input()", "runtime_error", within=SOON_S)
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
case(
    "honest/manager",
    """
from multiprocessing import Manager, Process
def add(numbers, number): numbers[number] = number
with Manager() as manager:
    numbers = manager.dict()
    processes = [Process(target=add, args=(numbers, number)) for number in range(16)]
    [process.start() for process in processes]; [process.join() for process in processes]
    print(sum(numbers.values()))
""",
    "ok",
    "120\n",
    strict_only=PROCESSES,
)
case(
    "honest/server of connections",
    """
import asyncio
async def answer(reader, writer):
    writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()
async def ask(number):
    reader, writer = await asyncio.open_unix_connection('server')
    writer.write(b'q%d\\n' % number)
    answered = await reader.readline(); writer.close()
    return answered == b'Q%d\\n' % number
async def main():
    async with await asyncio.start_unix_server(answer, 'server'):
        print(all(await asyncio.gather(*map(ask, range(10)))))
asyncio.run(main())
""",
    "ok",
    "True\n",
    strict_only="opens sockets, which the landlock tier refuses",
)
case(
    "honest/web server",
    """
import http.client, http.server, socket, socketserver, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'page')
    def log_message(self, *arguments): pass
    def address_string(self): return ''
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer): pass
server = Server('server', Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
pages = []
def get():
    connection = http.client.HTTPConnection('localhost')
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect('server')
    connection.request('GET', '/')
    pages.append(connection.getresponse().read())
threads = [threading.Thread(target=get) for _ in range(20)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(pages == [b'page'] * 20)
""",
    "ok",
    "True\n",
    strict_only="opens sockets, which the landlock tier refuses",
)
case("honest/async", "import asyncio\nasync def f(): return 3\nprint(asyncio.run(f()))", "ok", "3\n")
case(
    "honest/files", "open('a', 'w').write('x')\nprint(open('a').read())", "ok", "x\n", checks=("no_leftover",)
)
case(
    "honest/database",
    """
import sqlite3, threading
connection = sqlite3.connect('file.db', timeout=60)
connection.execute('pragma journal_mode=wal')
connection.execute('create table numbers (n)')
def add(first):
    with sqlite3.connect('file.db', timeout=60) as own:
        own.executemany('insert into numbers values (?)', [(first + n,) for n in range(100)])
threads = [threading.Thread(target=add, args=(100 * n,)) for n in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(*connection.execute('select count(*), sum(n) from numbers').fetchone())
""",
    "ok",
    "400 79800\n",
    checks=("no_leftover",),
)
case(
    "honest/written out",
    """
import mmap, os, shutil
with open('file', 'w+b') as file:
    file.write(bytes(8192)); file.flush(); os.fsync(file.fileno())
    mapped = mmap.mmap(file.fileno(), 8192)
    mapped[:2] = b'hi'; mapped.flush(); mapped.madvise(mmap.MADV_WILLNEED)
shutil.copy2('file', 'copy'); os.sync()
print(open('copy', 'rb').read(2), os.preadv(os.open('copy', 0), [bytearray(3)], 0))
""",
    "ok",
    "b'hi' 3\n",
)
case(
    "honest/clocks",
    """
import threading, time
mine = time.pthread_getcpuclockid(threading.get_ident())
print(all(clock > 0 for clock in (time.clock_gettime(mine), time.process_time(), time.thread_time(), time.monotonic())))
""",
    "ok",
    "True\n",
)
case(
    "honest/table",
    """
import pandas, sqlite3
connection = sqlite3.connect('file.db')
pandas.DataFrame({'a': [1, 2]}).to_sql('t', connection)
pandas.read_sql('select a from t', connection).to_csv('t.csv')
print(pandas.read_csv('t.csv').a.sum())
""",
    "ok",
    "3\n",
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
