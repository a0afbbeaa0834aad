"""Runs programs nobody trusts: each in a fresh, confined process forked from a warm interpreter.

    from rstar2.judge.sandbox.host import Sandbox

    sandbox = Sandbox(Path("work"), tier=None, minimum="strict")
    sandbox.start()                          # builds the jail and tries to break out of it
    sandbox.warm()                           # optional: start every zygote now, not when first wanted
    result = sandbox.run(RunRequest(code="print(1)"), "run-1")
    sandbox.isolation                        # the tier in force
    sandbox.exceptions()                     # what that tier does not enforce, one sentence each
    sandbox.close()

One Sandbox a worker process, one program at a time in it. This module imports nothing, because what runs
inside the jail is imported through it.
"""
