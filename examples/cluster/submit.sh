#!/bin/bash
# Submits slurm.sh so that Slurm signals the job early enough to finish a step and its checkpoint before the time limit.
#
#   examples/cluster/submit.sh SBATCH_OPTIONS... -- rstar2 train --stage 1..3 --model runs/sft --data data/rl \
#       --profile 64xh100 --run runs/rl
#
# `rstar2 plan` calculates how long a step and its checkpoint take with the recipe of the command. If they take more
# than half of the time limit (--time here, or that of slurm.sh), the signal comes at half of the limit, and the job
# ends after its first step. SFT has no such plan. Its steps take seconds to minutes, so the 30 minutes of slurm.sh
# apply.
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
seconds_of() { # a time limit in Slurm's forms: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S
    local days=0 fields
    if [[ ! $1 =~ ^([0-9]+-)?[0-9]+(:[0-9]+){0,2}$ ]]; then
        echo "$0: --time $1 is not a time limit: use a form of Slurm, such as 2-00:00:00" >&2
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
        echo "$0: no plan was made (see above). Choose the seconds: sbatch --signal=B:USR1@SECONDS ... $script $*" >&2
        exit 2
    fi
    seconds=$(python -c '
import json, sys
stages = json.load(sys.stdin)["stages"].values()
print(max(round(stage["checkpoint"]["signal_before_s"]) for stage in stages))' <<<"$plan")
    if ((seconds >= limit)); then
        echo "$0: warning: a step and its checkpoint are planned to take $seconds s, but the job has only $limit s" >&2
    fi
    seconds=$((seconds + 300)) # to stop everything, and a margin for a slow step
else
    seconds=1800
fi
if ((seconds > limit / 2)); then seconds=$((limit / 2)); fi
if ((seconds > 65535)); then seconds=65535; fi # Slurm accepts no more
echo "$0: Slurm will signal the job $seconds s before its time limit of $limit s" >&2
exec sbatch --signal="B:USR1@$seconds" "${for_sbatch[@]}" "$script" "$@"
