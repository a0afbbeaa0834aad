"""Everything that imports VERL or Ray: extensions through the hooks of VERL 0.9.1; none of its code is copied.

- `plugin`: loaded into every VERL process by VERL_USE_EXTERNAL_MODULES; what makes VERL train on a CPU.
- `torch_kernels`: loaded likewise if `hardware.attention` is "torch"; what stands in for flash-attn.
- `cpu`: the platform, training engine and rollout backend that it registers, and the engine's micro-batches.
- `agent_loop`: our agent loop, judge and grader behind VERL's agent-loop hook.
- `sampler`: RoC behind VERL's custom-sampler hook.
- `held_out`: what VERL measures on held-out problems, without the rollouts that have no verdict.
- `rendezvous`: the port at which the workers find each other, on CPUs and GPUs alike.
- `rollout_fields`: what travels from the agent loop to the sampler.

Private touch points, held by tests/train/verl/test_contract.py: `initialize_global_process_group` and `..._ray` of
`verl.utils.distributed`, `verl.workers.rollout.base._ROLLOUT_REGISTRY`, `ReplayBuffer._materialize_batch` and its
`_sync_metadata_from_transfer_queue`, `PPOTrainer._validate` and its `_val_metrics_update`, `prepare_micro_batches` of
the FSDP engine, `RayWorkerGroup.__init__` and its `master_port_range`, `SYNTHETIC_PADDING_SEQ_LEN` of
`verl.trainer.ppo.padding_utils`, `cross_entropy_loss` of `verl.utils.torch_functional`.
"""
