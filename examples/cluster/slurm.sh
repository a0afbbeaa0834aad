#!/bin/bash
# A Slurm job that continues a run until it is done. It starts a Ray cluster on the job's nodes and a judge on the first
# node, and runs the command again until the run is done. Submit it once, with submit.sh:
#
#   examples/cluster/submit.sh --nodes 8 -- rstar2 sft --model Qwen/Qwen3-14B-Base --data sft.parquet \
#       --profile 64xh100 --run runs/sft
#   examples/cluster/submit.sh --nodes 8 -- rstar2 train --stage 1..3 --model runs/sft --data data/rl \
#       --profile 64xh100 --run runs/rl
#
#   the command ends            this job
#   with 0                      ends: the run is done
#   with 2                      ends FAILED: the command or its data is wrong
#   because Slurm signals       requeues itself. The command saves at the end of its step, before the time limit
#   with anything else          starts the command again on a fresh Ray cluster
#
# It ends FAILED after MAX_ATTEMPTS (3) starts in a row without a new step, checkpoint or sample in the run's folder.
# To end the job for good, run `scancel --batch --signal=TERM JOB` (at the end of its step) or `scancel JOB` (at once).
# `sbatch --nodes 8 examples/cluster/slurm.sh rstar2 train …` works too. The signal then comes 30 minutes before the
# time limit, so a longer step may be lost.
# The run's folder, the model and the environment with rstar2 must be on a file system that all nodes share.
#SBATCH --job-name=rstar2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=2-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@1800
#SBATCH --output=%x-%j.log
set -euo pipefail
set -m # own process group for each background command, which then also receives SIGINT

# Variables for the workers. rstar2 forwards WANDB_*, HF_*, NCCL_* and similar ones; `--dry-run` lists them.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
export WANDB_MODE=${WANDB_MODE:-offline}

# Python starts slowly from a shared file system, and Ray's default limit is 30 s.
export RAY_raylet_start_wait_time_s=300

port=${RAY_PORT:-6379}
judge_port=${JUDGE_PORT:-8088}
# Half of the first node's cores, since Ray's processes need the others. `rstar2 plan` shows how many a step needs.
judge_workers=${JUDGE_WORKERS:-$((SLURM_CPUS_ON_NODE / 2))}
max_attempts=${MAX_ATTEMPTS:-3}
pause_s=${PAUSE_S:-60}
end_margin_s=120 # seconds that this script needs before the time limit, to stop everything and requeue

say() { echo "$(date '+%F %T') slurm.sh: $*" >&2; }

run='' word=''
for each in "$@"; do
    if [ "$word" = --run ]; then run=$each; fi
    case $each in --run=*) run=${each#--run=} ;; esac
    word=$each
done
if [ -z "$run" ]; then
    say "the command has no --run: add the run's folder, so that the job can see the progress of the run"
    exit 2
fi

# These tokens keep others on the network from using this cluster or running programs on this judge. All attempts of a
# run have the same tokens, so that a judge that survived one attempt accepts the programs of the next.
token() { # NAME: prints the token, and creates it first if needed
    local file=$run/.cluster/$1-token
    if [ ! -s "$file" ]; then
        mkdir -p "$run" # with the default permissions
        (umask 077 && mkdir -p "$run/.cluster" && openssl rand -hex 32 >"$file.new" && mv "$file.new" "$file")
    fi
    cat "$file"
}
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(token ray)
RSTAR2_JUDGE_TOKEN=$(token judge)
export RAY_AUTH_TOKEN RSTAR2_JUDGE_TOKEN

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${head%%$'\n'*}
on_head=(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head")
address=$("${on_head[@]}" hostname --ip-address | awk '{print $1}')

ending='' # the first signal that asked this job to end
command='' forwarded=''
forward_signal() { # only the first signal: a second would end the command without a checkpoint
    if [ -n "$ending" ] && [ -n "$command" ] && [ -z "$forwarded" ]; then
        forwarded=yes
        say "forwarding SIG$ending to the command, which saves at the end of its step"
        kill -"$ending" "$command" 2>/dev/null || true
    fi
}
on_signal() { # no `return` here: bash would also leave the `wait` that the signal interrupted
    if [ -z "$ending" ]; then
        ending=$1
        forward_signal
        if [ "$ending" = USR1 ]; then end_in_time & fi
    fi
}
end_in_time() { # ends the command if it has not saved shortly before the time limit
    local end=${SLURM_JOB_END_TIME:-}
    if [ -z "$end" ]; then end=$(date -d "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e)" +%s); fi
    sleep $((end - end_margin_s > $(date +%s) ? end - end_margin_s - $(date +%s) : 0))
    if [ -z "$command" ]; then return; fi
    say "the step did not end before the time limit; it will be repeated"
    kill -TERM "$command" 2>/dev/null || true
    sleep 20
    kill -KILL "$command" 2>/dev/null || true
}
trap 'on_signal USR1' USR1
trap 'on_signal TERM' TERM
trap 'on_signal INT' INT

judge=() # the process that keeps the judge running
ray=()   # Ray's processes
stop() { # GROUPS...: stops process groups within about half a minute
    local groups=("${@/#/-}")
    if [ $# -eq 0 ]; then return; fi
    kill -TERM -- "${groups[@]}" 2>/dev/null || true
    for _ in $(seq 30); do
        if ! kill -0 -- "${groups[@]}" 2>/dev/null; then return; fi
        sleep 1
    done
    kill -KILL -- "${groups[@]}" 2>/dev/null || true
}
finish() {
    trap - EXIT
    local all
    mapfile -t all < <(jobs -rp)
    stop "${all[@]}"
}
trap finish EXIT

wait_for() { # NAME COMMAND...: waits until the command succeeds. Fails after five minutes, or if something ended
    local what=$1 end=$((SECONDS + 300))
    shift
    while ((SECONDS < end)) && [ -z "$ending" ]; do
        if "$@" >/dev/null 2>&1; then return; fi
        for pid in "${ray[@]}" "${judge[@]}"; do
            if ! kill -0 "$pid" 2>/dev/null; then break 2; fi
        done
        sleep 2
    done
    if [ -z "$ending" ]; then say "$what did not start; see above"; fi
    return 1
}
all_joined() {
    local gpus
    gpus=$(timeout 60 python -m rstar2.train.verl.cluster "$address:$port") || return # separated by commas
    [ "$(tr -cd , <<<"$gpus" | wc -c)" -eq $((SLURM_JOB_NUM_NODES - 1)) ]
}
start_ray() {
    "${on_head[@]}" ray start --head --block --port="$port" --disable-usage-stats &
    ray=($!)
    wait_for "Ray on $head" timeout 60 ray status --address="$address:$port" || return
    if ((SLURM_JOB_NUM_NODES > 1)); then
        local others=$((SLURM_JOB_NUM_NODES - 1))
        srun --overlap --nodes="$others" --ntasks="$others" --ntasks-per-node=1 --exclude="$head" \
            ray start --block --address="$address:$port" --disable-usage-stats &
        ray+=($!)
    fi
    wait_for "Ray on all $SLURM_JOB_NUM_NODES nodes" all_joined
}
keep_judge() { # restarts the judge whenever it ends, unless its options are wrong
    local code
    while :; do
        code=0
        "${on_head[@]}" rstar2 judge up --host 0.0.0.0 --port "$judge_port" --workers "$judge_workers" || code=$?
        if [ "$code" -eq 2 ]; then return 2; fi
        say "the judge ended with exit code $code; it starts again in 10 s"
        sleep 10
    done
}
start_judge() {
    if [ ${#judge[@]} -eq 0 ] || ! kill -0 "${judge[0]}" 2>/dev/null; then
        keep_judge &
        judge=($!)
    fi
    wait_for "judge on $head" timeout 60 rstar2 judge status --url "http://$address:$judge_port"
}
pause() { # SECONDS: ends early if something ends the job
    local i
    for ((i = 0; i < $1; i++)); do
        if [ -n "$ending" ]; then return; fi
        sleep 1
    done
}
run_command() { # leaves its exit code in $code
    "$@" &
    command=$!
    forward_signal
    code=0
    wait "$command" || code=$?
    while kill -0 "$command" 2>/dev/null; do # a signal ended the wait, but not the command
        code=0
        wait "$command" || code=$?
    done
    command='' forwarded=''
}

export RAY_ADDRESS=$address:$port RSTAR2_JUDGE=http://$address:$judge_port
while :; do
    attempt=$(python -m rstar2.watch.attempts "$run" "slurm $SLURM_JOB_ID" "$max_attempts")
    if ((attempt > 1)); then say "attempt $attempt of $max_attempts without a new step, checkpoint or sample"; fi
    pause $(((attempt - 1) * pause_s))
    code=1
    if start_ray && start_judge; then run_command "$@"; fi
    if [ "$code" -eq 0 ] || [ "$code" -eq 2 ]; then exit "$code"; fi
    if [ "$ending" = USR1 ]; then break; fi
    if [ -n "$ending" ] || [ "$code" -eq 75 ] || [ "$code" -eq 130 ]; then exit "$code"; fi # somebody ended it
    say "the command ended with exit code $code; it is started again"
    # What died may have left actors and GPU memory behind.
    stop "${ray[@]}"
    ray=()
done
finish
if ! scontrol requeue "$SLURM_JOB_ID"; then
    say "Slurm does not requeue this job: submit the same command again to continue the run"
    exit 75
fi
say "requeued before the time limit"
