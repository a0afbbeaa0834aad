"""The only package of rstar2 that imports VERL or Ray. The package extends VERL 0.9.1 through hooks, and copies no code
of VERL.

- `plugin`: makes VERL train on a CPU. Every VERL process loads it because of the environment variable
  VERL_USE_EXTERNAL_MODULES.
- `torch_kernels`: replaces flash-attn with PyTorch if `hardware.attention` is "torch". The module is loaded in the same
  way as `plugin`.
- `cpu`: the platform, training engine and rollout backend for a CPU, and the engine's micro-batches.
- `agent_loop`: our agent loop, judge and grader, through VERL's agent-loop hook.
- `sampler`: the selection of rollouts, such as Resampling on Correct (RoC), through VERL's custom-sampler hook.
- `held_out`: the accuracy on held-out problems, measured over the rollouts that have a verdict.
- `rendezvous`: the port at which the workers find each other, on CPUs and GPUs.
- `rollout_fields`: the data that the agent loop passes to the sampler.

The package also replaces or uses these private parts of VERL, which tests/train/verl/test_contract.py checks:
`initialize_global_process_group` and `initialize_global_process_group_ray` of `verl.utils.distributed`,
`verl.workers.rollout.base._ROLLOUT_REGISTRY`, `ReplayBuffer._materialize_batch` and its
`_sync_metadata_from_transfer_queue`, `PPOTrainer._validate` and its `_val_metrics_update`, `prepare_micro_batches` of
the FSDP engine, `RayWorkerGroup.__init__` and its `master_port_range`, `SYNTHETIC_PADDING_SEQ_LEN` of
`verl.trainer.ppo.padding_utils`, and `cross_entropy_loss` of `verl.utils.torch_functional`.
"""
