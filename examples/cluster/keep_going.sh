#!/bin/bash
# Without Slurm: starts a training command again until the run is done, on a Ray cluster of ray_node.sh's nodes.
#
#   export RAY_ADDRESS=10.0.0.1:6379 RAY_AUTH_MODE=token RAY_AUTH_TOKEN=… RSTAR2_JUDGE=http://10.0.0.1:8088 RSTAR2_JUDGE_TOKEN=…
#   examples/cluster/keep_going.sh rstar2 train --stage 1..3 --model runs/sft --data data/rl \
#       --profile 64xh100 --run runs/rl
#
# It ends if the command ends with 0 (the run is done), 2 (the command or its data is wrong), or because of a signal:
# with Ctrl-C, SIGTERM or SIGUSR1 the command saves at the end of its step, with a second signal it ends at once. After
# anything else it waits for the judge and for as many nodes as the cluster had at most, ten minutes at the longest, and
# starts the command again. It gives up after
# MAX_ATTEMPTS (3) starts in a row without a new step, checkpoint or sample in the run's folder.
set -euo pipefail
set -m # the command gets a process group of its own, so that Ctrl-C reaches it through this script only

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
    echo "usage: $0 COMMAND... with --run, so that the script can see how far the run is" >&2
    exit 2
fi

ending='' command=''
# shellcheck disable=SC2317,SC2329 # called by the traps
on_signal() {
    ending=$1
    if [ -n "$command" ]; then kill -"$1" "$command" 2>/dev/null || true; fi
}
for name in INT TERM USR1; do
    # shellcheck disable=SC2064 # the name of this turn
    trap "on_signal $name" "$name"
done

nodes() { # how many nodes the Ray cluster has; 0 if it does not answer or there is none
    if [ -z "${RAY_ADDRESS:-}" ]; then
        echo 0
    else # a list with the GPUs of each node
        (timeout 60 python -m rstar2.train.verl.cluster "$RAY_ADDRESS" || true) 2>/dev/null | awk -F, 'END { print NF }'
    fi
}
judge_answers() {
    if [ -n "${RSTAR2_JUDGE:-}" ]; then timeout 60 rstar2 judge status --once --url "$RSTAR2_JUDGE" >/dev/null 2>&1; fi
}
wanted=0 # the most nodes that the cluster had; one at least if there is to be a cluster
if [ -n "${RAY_ADDRESS:-}" ]; then wanted=1; fi
wait_until_ready() { # ten minutes at most; the command says what is missing then
    local end=$((SECONDS + 600)) count missing said=''
    while [ -z "$ending" ] && ((SECONDS < end)); do
        count=$(nodes) missing=''
        if ((count > wanted)); then wanted=$count; fi
        if ((count < wanted)); then missing="the Ray cluster at $RAY_ADDRESS, which has $count of $wanted nodes"; fi
        if ! judge_answers; then missing+="${missing:+, and }the judge at $RSTAR2_JUDGE"; fi
        if [ -z "$missing" ]; then return; fi
        if [ "$missing" != "$said" ]; then say "waiting for $missing"; fi
        said=$missing
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
