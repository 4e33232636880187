#!/usr/bin/env bash
# Trains as train.yaml and ds_config.json say, on two devices of this machine, or as many as RANKS says:
#   ./scripts/launch.sh
#   RANKS=8 ./scripts/launch.sh --learning_rate 2e-5
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${TRIREME:-trireme}" launch --nproc_per_node "${RANKS:-2}" --max_restarts 3 -- \
  train --config train.yaml --deepspeed ds_config.json "$@"
