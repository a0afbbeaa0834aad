"""Everything that touches VERL or Ray: extensions through VERL 0.9.1's hooks, nothing of its inside copied.

- `plugin`: loaded into every VERL process by VERL_USE_EXTERNAL_MODULES; a CPU platform and rollout backend.
- `agent_loop`: our agent loop, judge and grader behind VERL's agent-loop hook.
- `sampler`: RoC behind VERL's custom-sampler hook.

Private touch points, held by tests/train/test_contract.py: `initialize_global_process_group` and `..._ray` of
`verl.utils.distributed`, `verl.workers.rollout.base._ROLLOUT_REGISTRY`, `ReplayBuffer._materialize_batch`.
"""
