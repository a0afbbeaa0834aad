"""The checks, in the order in which they run. The checks that need only torch and transformers come first."""

from __future__ import annotations

from rstar2.doctor.gpu_check.check import Check
from rstar2.doctor.gpu_check.checks import attention, environment, resume, rl, serve, sft, update

ENVIRONMENT = environment.CHECK.name
"""The check that always runs, because it describes the machine in the report."""
CHECKS: dict[str, Check] = {
    module.CHECK.name: module.CHECK for module in (environment, attention, update, serve, sft, rl, resume)
}
