"""Checks the environments of benchmark harnesses that were made on this machine."""

from __future__ import annotations

from rstar2.doctor.finding import Finding
from rstar2.eval.benchmarks import harnesses
from rstar2.eval.harnesses.environment import fault


def environments() -> list[Finding]:
    """Every environment there is; one that was never made is none, since only its benchmarks need it."""
    findings = []
    for harness in harnesses():
        if not harness.folder.is_dir():
            continue
        name, wrong = f"harness {harness.name}", fault(harness)
        if wrong is None:
            findings.append(Finding(name, ", ".join(harness.packages), "ok", False))
            continue
        fix = f"Needed only for {', '.join(harness.benchmarks)}."
        findings.append(Finding(name, wrong, "missing", False, fix, (harness.command,)))
    return findings
