#!/bin/bash
# Without Slurm: makes this machine a node of a Ray cluster until you press Ctrl-C. If Ray dies, it is started again.
#
#   export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(openssl rand -hex 32)    # the same on every machine
#   examples/cluster/ray_node.sh head             # on the first machine
#   examples/cluster/ray_node.sh 10.0.0.1:6379    # on every other machine, with the first one's address
#
# Then on the first machine, with a judge that all machines can reach:
#
#   export RAY_ADDRESS=10.0.0.1:6379 RSTAR2_JUDGE=http://10.0.0.1:8088 RSTAR2_JUDGE_TOKEN=...
#   examples/cluster/keep_going.sh rstar2 train --stage 1..3 --model runs/sft --data data/rl --profile 64xh100 \
#       --run runs/rl
#
# Or run it from another machine as a Ray job, for which Ray sets RAY_ADDRESS:
#
#   ray job submit --address http://10.0.0.1:8265 -- rstar2 train --stage 1..3 ...
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: $0 head | $0 ADDRESS:PORT" >&2
    exit 2
fi
: "${RAY_AUTH_TOKEN:?set it to the same long random text on every machine}"
export RAY_AUTH_MODE=token
if [ "$1" = head ]; then
    node=(--head --port="${RAY_PORT:-6379}")
else
    node=(--address="$1")
fi
trap 'kill -TERM $! 2>/dev/null; wait; exit 130' INT TERM
while :; do
    code=0
    ray start "${node[@]}" --block --disable-usage-stats &
    wait $! || code=$?
    echo "Ray ended with exit code $code; it starts again in 10 s" >&2
    sleep 10 &
    wait $!
done
