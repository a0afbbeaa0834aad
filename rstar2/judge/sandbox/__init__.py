"""Runs programs nobody trusts: each in a fresh, confined process forked from a warm interpreter.

    from rstar2.judge.sandbox.sandbox import Sandbox

    sandbox = Sandbox(Path("work"), tier=None, minimum="strict")
    sandbox.start()                          # builds the jail and tries to break out of it
    sandbox.warm()                           # optional: start every zygote now, not when first wanted
    result = sandbox.run(RunRequest(code="print(1)"), "run-1")
    session = sandbox.open_session(memory_mb=1024)
    result = session.run_cell("x = 1", timeout_s=10.0, cell_id="cell-1")
    session.alive, session.reason            # a session that died says why
    session.close()
    sandbox.isolation                        # the tier in force
    sandbox.exceptions()                     # what that tier does not enforce here, one sentence each
    sandbox.close()

One Sandbox a worker process, used by one thread; a run and a session's cell exclude one another.

host        Sandbox: chooses the tier, starts programs and sessions
tiers       what each tier builds here, and what it leaves open; layout, filters, cgroups: its parts
canaries    attempts to get out, made at each start
enclosure   one jail from outside: its first process and its zygotes; attend, streams, session: a program's
inside/     what runs in the jail: launch, jail, zygote, confine, program, cells

    worker ── launch (waits) ── bare zygote (first process of the jail) ── numeric ── symbolic ── full
                                     └─ one fork a program, in a PID namespace of its own

This module imports nothing, because what runs inside is imported through it.
"""
