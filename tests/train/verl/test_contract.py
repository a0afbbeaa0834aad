"""The public and private parts of VERL 0.9.1 that we use. A failure here shows which part has changed."""

from __future__ import annotations

import importlib.metadata
import inspect
import socket
from typing import Any

import pytest
from support.optional import needs
from support.train.verl_config import compose_config

from rstar2.processes import free_port
from rstar2.train.recipe import VERL_MICRO_BATCH

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.


def test_verl_is_the_version_the_touch_points_were_read_in() -> None:
    assert importlib.metadata.version("verl") == "0.9.1"


def test_process_groups_are_made_by_two_functions_that_a_plugin_can_replace() -> None:
    from verl.utils import distributed

    one = inspect.signature(distributed.initialize_global_process_group)
    ray = inspect.signature(distributed.initialize_global_process_group_ray)
    assert list(one.parameters) == ["timeout_second"]
    assert list(ray.parameters) == ["timeout_second", "backend"]
    source = inspect.getsource(distributed.initialize_global_process_group)
    assert "return local_rank, rank, world_size" in source, "the function's return value has changed"


def test_rollout_classes_are_looked_up_by_name_and_mode() -> None:
    from verl.workers.rollout import base

    assert isinstance(base._ROLLOUT_REGISTRY, dict)
    assert ("vllm", "async") in base._ROLLOUT_REGISTRY
    assert "_ROLLOUT_REGISTRY[(rollout_name, mode)]" in inspect.getsource(base.get_rollout_class)


def test_a_training_engine_is_found_by_its_device_and_takes_one_micro_batch_at_a_time() -> None:
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp import FSDPEngineWithLMHead

    assert "self.forward_step(micro_batch" in inspect.getsource(FSDPEngineWithLMHead.forward_backward_batch)
    assert "device = get_device_name()" in inspect.getsource(EngineRegistry.get_engine_cls)


def test_micro_batches_and_empty_rollouts_are_made_where_they_can_be_replaced() -> None:
    from verl.trainer.ppo import padding_utils
    from verl.workers.engine.fsdp import FSDPEngineWithLMHead

    forward_source = inspect.getsource(FSDPEngineWithLMHead.forward_backward_batch)
    assert "micro_batches, indices = prepare_micro_batches(" in forward_source
    padding_source = inspect.getsource(padding_utils.construct_minimal_padding_template)
    assert "SYNTHETIC_PADDING_SEQ_LEN - 1" in padding_source
    filled = inspect.getsource(padding_utils.upsample_batch_to_divisible_size)
    assert 'pad_uid = f"pad{uuid.uuid4().hex}"' in filled, "advantages exclude them by this name"


def test_what_the_trainer_does_is_seen_in_methods_of_its_engine() -> None:
    """The methods that `rstar2.train.verl.activity` wraps: update, log-probabilities, sending weights, checkpoints."""
    from verl.workers import engine_workers
    from verl.workers.engine.fsdp import transformer_impl

    from rstar2.train.verl.activity import _PHASES

    engine = transformer_impl.FSDPEngine
    parameters = inspect.signature(engine.forward_backward_batch).parameters
    assert list(parameters) == ["self", "data", "loss_function", "forward_only"]
    assert "return per_tensor_param, peft_config_dict" in inspect.getsource(engine.get_per_tensor_param)
    assert "self.actor.engine.get_per_tensor_param(" in inspect.getsource(
        engine_workers.ActorRolloutRefWorker
    )
    for name in _PHASES:
        assert name in vars(engine), name
        assert name not in vars(transformer_impl.FSDPEngineWithLMHead), name
    worker = inspect.getsource(engine_workers.TrainingWorker.__init__)
    assert "initialize_global_process_group_ray(timeout_second=None)" in worker


def test_the_trainer_decides_on_saving_and_on_its_end_after_the_update() -> None:
    """The values that `rstar2.train.verl.saving` and `sft_trainer` set to make VERL save and stop."""
    from verl.trainer import sft_trainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    source = inspect.getsource(PPOTrainer.fit)
    step = source.index("batch = self.step(metrics, self.timing_raw)")
    save = source.index("self.config.trainer.save_freq > 0 and (")
    assert step < save < source.index("self.on_step_end()")
    assert "self.global_steps <= self.total_training_steps:" in source
    source = inspect.getsource(sft_trainer.SFTTrainer.fit)
    train = source.index("self.training_client.train_batch(data=data)")
    last = source.index("is_last_step = global_step >= self.total_training_steps")
    saving = source.index("is_save_step = global_step % self.save_freq == 0")
    assert train < last < saving < source.index("self.ckpt_handler.save_checkpoint(step=global_step)")
    assert "trainer = SFTTrainer(config=config)" in inspect.getsource(sft_trainer.run_sft)


def test_flash_attns_loss_is_called_by_a_name_that_can_be_replaced() -> None:
    from verl.utils import torch_functional

    logprobs_source = inspect.getsource(torch_functional.logprobs_from_logits)
    assert "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE" in logprobs_source
    flash_source = inspect.getsource(torch_functional.logprobs_from_logits_flash_attn)
    assert "cross_entropy_loss(logits, labels, inplace_backward=inplace_backward)" in flash_source
    assert "return -output[0]" in flash_source


def test_sft_counts_conversations_where_it_is_told_to() -> None:
    assert compose_config("sft_trainer_engine", []).data.micro_batch_size_per_gpu == VERL_MICRO_BATCH


def test_sft_takes_a_dataset_of_ours() -> None:
    from verl.trainer import sft_trainer

    source = inspect.getsource(sft_trainer.create_sft_dataset)
    assert "load_extern_object(data_config.custom_cls.path, data_config.custom_cls.name)" in source
    assert "parquet_files=data_paths" in source


def test_the_replay_buffer_hands_groups_to_one_method() -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    method = inspect.signature(ReplayBuffer._materialize_batch)
    assert list(method.parameters) == ["self", "partition_id", "selected_prompt_uids", "partition_snapshot"]
    assert "self._materialize_batch(" in inspect.getsource(ReplayBuffer.sample)
    assert "poll_interval" in inspect.signature(ReplayBuffer.__init__).parameters
    assert list(inspect.signature(ReplayBuffer.sample).parameters) == [
        "self",
        "global_steps",
        "partition_id",
        "batch_size",
    ]


def test_the_data_loaders_sampler_is_made_by_a_function_that_can_be_replaced_and_is_saved() -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    dataloader_source = inspect.getsource(PPOTrainer._init_dataloader)
    assert "sampler=create_rl_sampler(self.config.data, self.train_dataset)" in dataloader_source
    assert "self.train_dataloader.state_dict()" in inspect.getsource(PPOTrainer._save_checkpoint)
    # One method removes groups that no step takes from the queue.
    assert list(inspect.signature(ReplayBuffer._clear_groups).parameters) == ["self", "partition_id", "uids"]
    for removes in (ReplayBuffer._evict_terminal_groups, ReplayBuffer.sample):
        assert "self._clear_groups(partition_id, " in inspect.getsource(removes)
    assert ReplayBufferAsync._clear_groups is ReplayBuffer._clear_groups


def test_held_out_problems_are_measured_by_two_methods_that_can_be_replaced() -> None:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from rstar2.train.verl import held_out

    assert PPOTrainer._validate is held_out._validate
    assert PPOTrainer._val_metrics_update is held_out._val_metrics_update
    assert list(inspect.signature(held_out._verls_metrics).parameters) == [
        "self",
        "data_sources",
        "sample_uids",
        "reward_extra_infos_dict",
        "sample_turns",
        "expected_acc_counts",
    ]
    validates = inspect.getsource(held_out._verls_validate)
    assert 'partition_id="val", batch_size=len(batch)' in validates
    assert "return self._val_metrics_update(" in validates


def test_the_replay_buffer_looks_at_the_queue_by_one_method_and_a_rollout_may_have_only_a_tag() -> None:
    from transfer_queue import interface
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

    for polls in (ReplayBuffer.sample, ReplayBufferAsync.wait_for_sampleable):
        assert "self._sync_metadata_from_transfer_queue()" in inspect.getsource(polls)
    assert "time.sleep(self.poll_interval)" in inspect.getsource(ReplayBuffer._wait_for_next_poll)
    put_parameters = inspect.signature(interface.async_kv_put).parameters
    assert put_parameters["fields"].default is None
    assert "tag" in put_parameters


def test_agent_loops_hand_over_a_score_of_their_own() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker

    assert {"prompt_ids", "response_ids", "response_mask", "reward_score", "extra_fields"} <= set(
        AgentLoopOutput.model_fields
    )
    assert "final_output.reward_score is None" in inspect.getsource(AgentLoopWorker._compute_score)


def test_a_worker_runs_each_rollout_by_one_method() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, _agent_loop_registry
    from verl.trainer.ppo.v1 import agent_loop_tq

    assert isinstance(_agent_loop_registry, dict)
    assert issubclass(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class, AgentLoopWorker)
    queued = inspect.getsource(agent_loop_tq)
    assert "def _run_agent_loop" not in queued
    assert "self.agent_loop_workers_class = AgentLoopWorkerTQ" in queued
    loop_parameters = inspect.signature(AgentLoopWorker._run_agent_loop).parameters
    assert {"sampling_params", "trajectory", "agent_name", "trace", "kwargs"} <= set(loop_parameters)
    source = inspect.getsource(AgentLoopWorker._run_agent_loop)
    assert 'self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)' in source
    for argument in ("trainer_config", "server_manager", "tokenizer", "processor", "dataset_cls", "tools"):
        assert f"{argument}=" in source


def test_rollouts_a_problem_are_read_from_the_row() -> None:
    from verl.trainer.ppo.v1 import agent_loop_tq

    assert '"__rollout_n__"' in inspect.getsource(agent_loop_tq)


def test_what_leaves_verl_passes_where_we_stand_in() -> None:
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
    from verl.utils import tracking

    assert "log(data=data, step=step)" in inspect.getsource(tracking)
    merged = inspect.signature(FSDPModelMerger._load_and_merge_state_dicts)
    assert list(merged.parameters)[:3] == ["self", "world_size", "total_shards"]
    assert "self._load_and_merge_state_dicts(" in inspect.getsource(FSDPModelMerger.merge_and_save)
    waits = inspect.signature(ReplayBuffer._wait_for_next_poll)
    assert list(waits.parameters) == ["self", "partition_id", "last_debug_time"]
    assert "self._wait_for_next_poll(" in inspect.getsource(ReplayBuffer.sample)


def test_the_asynchronous_trainer_stops_engines_for_the_update_and_clients_continue() -> None:
    from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    assert "abort_replicas()" in inspect.getsource(PPOTrainerColocateAsync.on_sample_end)
    assert "resume_generation_replicas()" in inspect.getsource(PPOTrainerColocateAsync.on_step_end)
    client = inspect.getsource(FullyAsyncLLMServerClient.generate)
    assert 'output.stop_reason not in ("aborted", "abort")' in client
    assert 'final_output.extra_fields["min_global_steps"] = min_global_steps' in client


def test_the_asynchronous_buffer_evicts_failed_groups_by_one_method() -> None:
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

    assert issubclass(ReplayBufferAsync, ReplayBuffer)
    waits = inspect.getsource(ReplayBufferAsync.wait_for_sampleable)
    assert "self._evict_terminal_groups(" in waits
    assert "self._wait_for_next_poll(" in waits
    reasons = inspect.getsource(ReplayBufferAsync._terminal_eviction_reasons)
    assert "return stale_uids, dapo_uids, set(self.failure_keys[partition_id]), dapo_counts" in reasons


def test_workers_meet_at_the_first_free_port_of_a_range_where_one_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray
    from verl.single_controller.ray import RayWorkerGroup, base

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", free_port()))
        bound_socket.listen()
        port = bound_socket.getsockname()[1]
        _, chosen_port = base.get_master_addr_port._function([port, port + 1000])
    assert port < int(chosen_port) < port + 1000
    port_range_line = 'self._ray_master_port_range = kwargs.pop("master_port_range", None)'
    assert port_range_line in inspect.getsource(RayWorkerGroup.__init__)
    for constructor in (RayWorkerGroup._init_with_resource_pool, RayWorkerGroup._init_with_subresource_pool):
        assert "master_port_range=self._ray_master_port_range" in inspect.getsource(constructor)


def test_worker_groups_get_ports_that_the_kernel_gives_to_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rstar2.train.verl import rendezvous

    calls: list[dict[str, Any]] = []
    init = rendezvous._with_ports(lambda group, **more: calls.append(more))
    for ports in (range(20_000, 32_000), range(0)):
        monkeypatch.setattr(rendezvous, "unassigned_ports", lambda ports=ports: ports)
        init(None)
    (first, end), without = calls[0]["master_port_range"], calls[1]
    assert 20_000 <= first < 26_000
    assert end == 32_000
    assert without == {}


def test_trackers_are_opened_and_finished_where_ours_come_in() -> None:
    """The methods that `rstar2.train.verl.output.trackers` replaces."""
    from verl.trainer import main_ppo
    from verl.utils import tracking

    source = inspect.getsource(tracking)
    assert "mlflow.log_params(_compute_mlflow_params_from_objects(config))" in source
    assert "if context_vars.current_run.get() is None:" in source
    assert "tracking.finish(exit_code=" in inspect.getsource(main_ppo)
