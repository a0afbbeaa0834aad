"""Runs the `Worker` of a module in this folder: `python program.py MODULE`.

Requests are lines of JSON on standard input, and results are lines of JSON on standard output. The first request,
`start`, has the worker's settings. Every other request names a method of the worker. The harness's own output goes to
standard error.
"""

import importlib
import json
import os
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lock = threading.Lock()
    worker: Any = None

    def answer(request: dict[str, Any]) -> None:
        nonlocal worker
        try:
            if request["action"] == "start":
                worker = importlib.import_module(sys.argv[1]).Worker(**request["arguments"]["settings"])
                result: dict[str, Any] = {"value": None}
            else:
                result = {"value": getattr(worker, request["action"])(**request["arguments"])}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a harness may raise anything
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        line = json.dumps({"number": request["number"], **result}, default=str)
        with lock:
            answers.write(line + "\n")
            answers.flush()

    with ThreadPoolExecutor(max_workers=256) as pool:
        for line in sys.stdin:
            request = json.loads(line)
            if request["action"] == "start":
                answer(request)
            else:
                pool.submit(answer, request)


if __name__ == "__main__":
    main()
