#!/bin/bash
# A Slurm job: starts a Ray cluster over the job's nodes and a judge on the first node, then runs the given command.
#
#   sbatch --nodes 8 examples/cluster/slurm.sh rstar2 sft --model Qwen3-14B-Base --data sft.parquet \
#          --profile 64xh100 --run runs/sft
#   sbatch --nodes 8 examples/cluster/slurm.sh rstar2 train --stage 1..3 --model runs/sft --data train.parquet \
#          --profile 64xh100 --run runs/rl
#
# The same line resumes a job that ended early; Slurm repeats it by itself if the partition allows requeueing.
# The run's folder, the model and the environment with rstar2 must be on a file system that all nodes share.
#SBATCH --job-name=rstar2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=2-00:00:00
#SBATCH --requeue
#SBATCH --signal=B:INT@300
#SBATCH --output=%x-%j.log
set -euo pipefail
set -m # job control, so that the command below can be interrupted

# For the workers. rstar2 passes on WANDB_*, HF_*, NCCL_* and similar variables; `--dry-run` lists them.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
export WANDB_MODE=${WANDB_MODE:-offline}

# Python starts slowly from a shared file system, and Ray's default limit is 30 s.
export RAY_raylet_start_wait_time_s=300

port=${RAY_PORT:-6379}
judge_port=${JUDGE_PORT:-8088}
# Half of the first node's cores; Ray's own processes need the others. `rstar2 plan` shows how many a step needs.
judge_workers=${JUDGE_WORKERS:-$((SLURM_CPUS_ON_NODE / 2))}
# These tokens keep others on the network from using this cluster or running programs on this judge.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(openssl rand -hex 32)
RSTAR2_JUDGE_TOKEN=$(openssl rand -hex 32)
export RAY_AUTH_TOKEN RSTAR2_JUDGE_TOKEN

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
on_head=(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head")
address=$("${on_head[@]}" hostname --ip-address | awk '{print $1}')
started=()
finish() { # takes at most about half a minute
    trap - EXIT
    kill -TERM "${started[@]}" 2>/dev/null || true
    for _ in $(seq 30); do
        if [ -z "$(jobs -rp)" ]; then return; fi
        sleep 1
    done
    kill -KILL $(jobs -rp) 2>/dev/null || true
}
trap finish EXIT

wait_for() { # what, command...: waits at most five minutes, and only while everything that was started still runs
    local what=$1 end=$((SECONDS + 300))
    shift
    while ((SECONDS < end)); do
        if "$@" >/dev/null 2>&1; then return; fi
        for pid in "${started[@]}"; do
            if ! kill -0 "$pid" 2>/dev/null; then break 2; fi
        done
        sleep 2
    done
    echo "no $what; see above" >&2
    exit 1
}

"${on_head[@]}" ray start --head --block --port="$port" --disable-usage-stats &
started+=($!)
wait_for "Ray on $head" timeout 60 ray status --address="$address:$port"
if ((SLURM_JOB_NUM_NODES > 1)); then
    others=$((SLURM_JOB_NUM_NODES - 1))
    srun --overlap --nodes="$others" --ntasks="$others" --ntasks-per-node=1 --exclude="$head" \
        ray start --block --address="$address:$port" --disable-usage-stats &
    started+=($!)
fi
all_joined() {
    local gpus
    gpus=$(timeout 60 python -m rstar2.train.verl.cluster "$address:$port") # a list with the count of each node
    [ "$(tr -cd , <<<"$gpus" | wc -c)" -eq $((SLURM_JOB_NUM_NODES - 1)) ]
}
wait_for "Ray on all $SLURM_JOB_NUM_NODES nodes" all_joined
"${on_head[@]}" rstar2 judge up --host 0.0.0.0 --port "$judge_port" --workers "$judge_workers" &
started+=($!)
wait_for "judge on $head" timeout 60 rstar2 judge status --url "http://$address:$judge_port"

export RAY_ADDRESS=$address:$port RSTAR2_JUDGE=http://$address:$judge_port
"$@" &
command=$!
# Before the time limit, Slurm signals this script; training then ends, and its checkpoints are kept.
trap 'kill -INT $command 2>/dev/null || true' INT TERM
code=0
wait "$command" || code=$?
while kill -0 "$command" 2>/dev/null; do # a signal ended the wait, but not the command
    code=0
    wait "$command" || code=$?
done
exit "$code"
