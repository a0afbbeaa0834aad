#!/bin/bash
# Without Slurm: runs a training command on a Ray cluster of ray_node.sh, and restarts it until the run is done.
#
#   export RAY_ADDRESS=10.0.0.1:6379 RAY_AUTH_MODE=token RAY_AUTH_TOKEN=…
#   export RSTAR2_JUDGE=http://10.0.0.1:8088 RSTAR2_JUDGE_TOKEN=…
#   examples/cluster/keep_going.sh rstar2 train --stage 1..3 --model runs/sft --data data/rl \
#       --profile 64xh100 --run runs/rl
#
# It ends if the command ends with 0 (the run is done), with 2 (the command or its data is wrong), or by a signal. After
# Ctrl-C, SIGTERM or SIGUSR1 the command saves at the end of its step; a second signal ends it at once.
#
# If the command ends in any other way, the script waits at most ten minutes for the judge and for the highest number of
# nodes that the cluster had, and starts the command again. It gives up after MAX_ATTEMPTS (3) starts in a row without a
# new step, checkpoint or sample in the run's folder.
set -euo pipefail
set -m # own process group for the command, so that Ctrl-C reaches it only through this script

max_attempts=${MAX_ATTEMPTS:-3}
pause_s=${PAUSE_S:-60}

say() { echo "$(date '+%F %T') keep_going.sh: $*" >&2; }

run='' word=''
for each in "$@"; do
    if [ "$word" = --run ]; then run=$each; fi
    case $each in --run=*) run=${each#--run=} ;; esac
    word=$each
done
if [ -z "$run" ]; then
    echo "usage: $0 COMMAND... The command needs --run, so that the script can see the progress of the run" >&2
    exit 2
fi

ending='' command=''
# shellcheck disable=SC2317,SC2329 # called by the traps
on_signal() {
    ending=$1
    if [ -n "$command" ]; then kill -"$1" "$command" 2>/dev/null || true; fi
}
for name in INT TERM USR1; do
    # shellcheck disable=SC2064 # expand $name now
    trap "on_signal $name" "$name"
done

nodes() { # prints the number of nodes of the Ray cluster; 0 if it does not answer or there is none
    if [ -z "${RAY_ADDRESS:-}" ]; then
        echo 0
    else # the module prints the GPUs of each node, separated by commas
        (timeout 60 python -m rstar2.train.verl.cluster "$RAY_ADDRESS" || true) 2>/dev/null | awk -F, 'END { print NF }'
    fi
}
judge_answers() {
    if [ -n "${RSTAR2_JUDGE:-}" ]; then timeout 60 rstar2 judge status --once --url "$RSTAR2_JUDGE" >/dev/null 2>&1; fi
}
expected=0 # the highest number of nodes that the cluster had, at least one if RAY_ADDRESS is set
if [ -n "${RAY_ADDRESS:-}" ]; then expected=1; fi
wait_until_ready() { # at most ten minutes; after that the command itself reports what is missing
    local end=$((SECONDS + 600)) count missing reported=''
    while [ -z "$ending" ] && ((SECONDS < end)); do
        count=$(nodes) missing=''
        if ((count > expected)); then expected=$count; fi
        if ((count < expected)); then missing="the Ray cluster at $RAY_ADDRESS, which has $count of $expected nodes"; fi
        if ! judge_answers; then missing+="${missing:+, and }the judge at $RSTAR2_JUDGE"; fi
        if [ -z "$missing" ]; then return; fi
        if [ "$missing" != "$reported" ]; then say "waiting for $missing"; fi
        reported=$missing
        sleep 5
    done
}

while [ -z "$ending" ]; do
    attempt=$(python -m rstar2.watch.attempts "$run" "$(hostname) $$" "$max_attempts")
    if ((attempt > 1)); then
        say "attempt $attempt of $max_attempts without a new step, checkpoint or sample"
        for ((i = 0; i < (attempt - 1) * pause_s; i++)); do
            if [ -n "$ending" ]; then break; fi
            sleep 1
        done
    fi
    wait_until_ready
    if [ -n "$ending" ]; then break; fi
    "$@" &
    command=$!
    code=0
    wait "$command" || code=$?
    while kill -0 "$command" 2>/dev/null; do # a signal ended the wait, but not the command
        code=0
        wait "$command" || code=$?
    done
    command=''
    case $code in 0 | 2 | 75 | 130) exit "$code" ;; esac
    if [ -n "$ending" ]; then exit "$code"; fi
    say "the command ended with exit code $code; it is started again"
done
exit 130
