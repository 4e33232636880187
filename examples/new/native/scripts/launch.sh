#!/usr/bin/env bash
# Trains as train.yaml and ds_config.json say, on two devices of this machine, or as many as RANKS says.
#   ./scripts/launch.sh validate                          the checks before a run
#   ./scripts/launch.sh
#   RANKS=8 ./scripts/launch.sh --learning_rate 2e-5
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command=train restarts=3
if [[ ${1:-} == validate ]]; then command=validate restarts=0; shift; fi
exec "${TRIREME:-trireme}" launch --nproc_per_node "${RANKS:-2}" --max_restarts "$restarts" -- \
  "$command" --config train.yaml --deepspeed ds_config.json "$@"
