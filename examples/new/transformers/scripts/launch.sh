#!/usr/bin/env bash
# Trains with Transformers in one process, as train.yaml and ds_config.json say.
#   ./scripts/launch.sh
#   PYTHON=.venv/bin/python ./scripts/launch.sh --max_steps 100
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" train.py --config train.yaml --deepspeed ds_config.json "$@"
