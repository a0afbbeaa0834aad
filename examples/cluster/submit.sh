#!/bin/bash
# Submits slurm.sh with its signal early enough: as long before the time limit as a step and its checkpoint take.
#
#   examples/cluster/submit.sh SBATCH_OPTIONS... -- rstar2 train --stage 1..3 --model runs/sft --data data/rl \
#       --profile 64xh100 --run runs/rl
#
# `rstar2 plan` says how long that is, for the recipe of the command. If that is more than half of the time limit (the
# --time here, or that of slurm.sh), the signal comes at half of it: the job then ends after its first step. SFT has no
# such plan; its steps take seconds to minutes, and slurm.sh's own 30 minutes apply.
set -euo pipefail

script=$(dirname "$0")/slurm.sh
for_sbatch=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    for_sbatch+=("$1")
    shift
done
if [ $# -lt 3 ]; then
    echo "usage: $0 SBATCH_OPTIONS... -- rstar2 train|sft OPTIONS..." >&2
    exit 2
fi
shift

time=$(sed -n 's/^#SBATCH --time=//p' "$script")
before=''
for option in "${for_sbatch[@]}"; do
    case $before in -t | --time) time=$option ;; esac
    case $option in
        --time=*) time=${option#--time=} ;;
        -t?*) time=${option#-t} ;;
    esac
    before=$option
done
seconds_of() { # a time limit in one of Slurm's forms: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S
    local days=0 fields
    if [[ ! $1 =~ ^([0-9]+-)?[0-9]+(:[0-9]+){0,2}$ ]]; then
        echo "$0: --time $1 is not a time limit" >&2
        return 2
    fi
    IFS=: read -ra fields <<<"${1#*-}"
    if [[ $1 = *-* ]]; then
        days=${1%%-*}
    elif [ ${#fields[@]} -lt 3 ]; then
        fields=(0 "${fields[@]}") # minutes come first
    fi
    echo $((((10#$days * 24 + 10#${fields[0]}) * 60 + 10#${fields[1]:-0}) * 60 + 10#${fields[2]:-0}))
}
limit=$(seconds_of "$time")

if [ "$2" = train ]; then
    for_plan=()
    before=''
    for word in "$@"; do
        case $before in
            --model | --stage | --profile | --recipe | --set) for_plan+=("$before" "$word") ;;
        esac
        case $word in
            --model=* | --stage=* | --profile=* | --recipe=* | --set=*) for_plan+=("$word") ;;
        esac
        before=$word
    done
    if ! plan=$("$1" plan "${for_plan[@]}" --json); then
        echo "$0: without a plan, choose the seconds: sbatch --signal=B:USR1@SECONDS ... $script $*" >&2
        exit 2
    fi
    seconds=$(python -c '
import json, sys
stages = json.load(sys.stdin)["stages"].values()
print(max(round(stage["checkpoint"]["signal_before_s"]) for stage in stages))' <<<"$plan")
    if ((seconds >= limit)); then
        echo "$0: warning: a step and its checkpoint are planned to take $seconds s, but the job has only $limit s" >&2
    fi
    seconds=$((seconds + 300)) # to end everything, and in case a step takes a little longer
else
    seconds=1800
fi
if ((seconds > limit / 2)); then seconds=$((limit / 2)); fi
if ((seconds > 65535)); then seconds=65535; fi # the most that Slurm accepts
echo "$0: Slurm will signal the job $seconds s before its time limit of $limit s" >&2
exec sbatch --signal="B:USR1@$seconds" "${for_sbatch[@]}" "$script" "$@"
