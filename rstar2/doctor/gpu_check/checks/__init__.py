"""The checks, in the order in which they run: first those that need only torch and transformers."""

from __future__ import annotations

from rstar2.doctor.gpu_check.check import Check
from rstar2.doctor.gpu_check.checks import attention, environment, resume, rl, serve, sft, update

ENVIRONMENT = environment.CHECK.name
"""Always run: the report says with it which machine it is of."""
CHECKS: dict[str, Check] = {
    module.CHECK.name: module.CHECK for module in (environment, attention, update, serve, sft, rl, resume)
}
