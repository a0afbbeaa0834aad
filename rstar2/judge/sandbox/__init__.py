"""Runs programs that nobody trusts: each in a new, confined process that is forked from a preloaded interpreter.

    from rstar2.judge.sandbox.sandbox import Sandbox

    sandbox = Sandbox(Path("work"), tier=None, minimum="strict")
    sandbox.start()                          # builds the jail and tries to break out of it
    sandbox.start_zygotes()                  # optional: start every zygote now, not when first needed
    result = sandbox.run(RunRequest(code="print(1)"), "run-1")
    session = sandbox.open_session(memory_mb=1024)
    result = session.run_cell("x = 1", timeout_s=10.0, cell_id="cell-1")
    session.alive, session.reason            # a session that died says why
    session.close()
    sandbox.isolation                        # the tier in force
    sandbox.exceptions()                     # what that tier does not enforce here, one sentence each
    sandbox.close()

One Sandbox per worker process, used by one thread: it runs one program, or one cell of a session, at a time.

Processes, and who starts whom:

    worker ── starter ── bare zygote ── numeric zygote ── symbolic zygote ── full zygote
                              └──────────────┴──────────────────┴───────────────┴── one fork per program,
                                                                  in a PID namespace of its own (strict)

The worker starts one new interpreter. In the strict tier that one enters the namespaces and waits outside while
its child becomes the bare zygote, the first process of the jail; in the other tiers it becomes the bare zygote
itself. Each zygote forks the next, which loads more libraries, and the programs that need just these.

Outside, in the worker:

    sandbox        Sandbox: chooses the tier, builds the jail, runs programs, opens sessions
    run            waits for a program, and enforces its limits
    session        Session: cells in one process that stays
    streams        a program's standard input, output and report
    jail           Jail: starts the processes inside and exchanges messages with them
    protocol       the messages, as types
    zygote_kinds   which zygote a program needs
    tiers          what each tier builds, and does not enforce; from rootfs, seccomp and cgroups
    escape_tests   attempts to break out, made at each start

Inside, in `inside/`: main (starts), namespaces (builds the strict jail), preload (loads libraries), zygote (forks
programs), confine (restricts them), program and session (run their code), scratch, memory and cleaner (count what
they take and empty their folders), prefault, wire and syscalls.

This module imports nothing, because everything inside is imported through it.
"""
