"""Runs untrusted programs. Each program gets a new, confined process that is forked from a preloaded interpreter.

    from rstar2.judge.sandbox.sandbox import Sandbox

    sandbox = Sandbox(Path("work"), tier=None, minimum="strict")
    sandbox.start()                          # builds the jail and runs the escape tests in it
    sandbox.start_zygotes()                  # optional: starts all zygotes now instead of when they are needed
    result = sandbox.run(RunRequest(code="print(1)"), "run-1")
    session = sandbox.open_session(memory_mb=1024)
    result = session.run_cell("x = 1", timeout_s=10.0, cell_id="cell-1")
    session.alive, session.reason            # whether the session is alive, and why it ended
    session.close()
    sandbox.isolation                        # the isolation tier
    sandbox.exceptions()                     # sentences about what this tier does not enforce on this machine
    sandbox.close()

A worker process has one Sandbox, which runs one program at a time. Only one thread may use the Sandbox. Other threads
may call only `abort` and the methods of sessions.

The processes form this tree, from parent to child:

    worker ── starter ── bare zygote ── numeric zygote ── symbolic zygote ── full zygote
                              └──────────────┴──────────────────┴───────────────┴── one fork per program,
                                                                  in a PID namespace of its own (strict)

The worker starts one new interpreter, which is called the starter. In the strict tier, the starter enters the
namespaces. The starter's child process becomes the bare zygote, which is the first process of the jail. In the tiers
`landlock` and `none`, the starter itself becomes the bare zygote. Each zygote forks the next one, which loads more
libraries. Each zygote also forks the programs that need its libraries.

Modules outside the jail, which run in the worker:

    sandbox        Sandbox: chooses the tier, builds the jail, runs programs, opens sessions
    run            waits for the end of a program, and enforces its limits
    session        Session: runs cells in one process that stays alive
    streams        a program's standard input, output and report
    jail           Jail: starts the processes in the jail and exchanges messages with them
    protocol       types of the messages that `Jail` sends into the jail
    zygote_kinds   chooses the zygote for a program
    tiers          defines how each tier is built and what each tier does not enforce (with rootfs, seccomp and
                   host/cgroups)
    escape_tests   tries to break out of each new jail

Modules inside the jail are in `inside/`: main is the entry point, namespaces builds the strict jail, preload loads
libraries, zygote forks programs, confine restricts programs, program and session run code. scratch, memory and cleaner
measure the memory and disk space that programs use, and remove the files that programs leave. prefault, wire,
processes, turns and syscalls are helpers of the other modules in `inside/`.

This module imports nothing, because importing any module of `inside/` also imports this module.
"""
