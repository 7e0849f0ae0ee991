#!/usr/bin/env bash
# Install the wheels into new environments as a user would, then train, export, serve and predict; print sizes and times.
#   try.sh WHEELS FOLDER PYTHON [pip|uv]
# WHEELS: a folder with wheels of `make wheel` and `make client-wheel`. FOLDER: emptied first; it holds two environments, all of
# recsys-serving in one and the client alone in the other. uv is taken from the path. TORCH_INDEX_URL: where torch comes from
# before pip's own index (default: torch's CPU builds; empty: nowhere else).
set -euo pipefail
wheels=$(realpath "$1") folder=$2 python=$3 installer=${4:-pip}
index=${TORCH_INDEX_URL-https://download.pytorch.org/whl/cpu}
project=recsys-serving
unset PYTHONPATH
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"

# Makes an environment and installs into it; the last word is the package.
install() {
  local environment=$1
  shift
  if [[ "$installer" == uv ]]; then
    uv venv -q --python "$python" "$environment"
    # uv takes a project from one index; pip takes the best build of all.
    uv pip install -q --python "$environment/bin/python" --index-strategy unsafe-best-match "$@"
  else
    "$python" -m venv "$environment"
    "$environment/bin/pip" install -q --disable-pip-version-check --timeout 15 --retries 1 "$@"
  fi
}

SECONDS=0
install all --find-links "$wheels" ${index:+--extra-index-url "$index"} "$project[cpu]"
installed_s=$SECONDS
install client --find-links "$wheels" "$project-client"
export PATH=$PWD/all/bin:$PATH

SECONDS=0
recsys-train --data synthetic --out model.pt >train.log 2>&1 || { cat train.log >&2; exit 1; }
recsys-export model.pt --dtype int8 --target cpu,cpu >export.log 2>&1 || { cat export.log >&2; exit 1; }
exec {answers}< <(exec recsys-serve model.artifact --port 0 --metrics-port 0 --json 2>serve.log)
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
read -r -t 120 ready <&"$answers" || { cat serve.log >&2; exit 1; }
address=127.0.0.1:$(python -c 'import json, sys; print(json.loads(sys.argv[1])["port"])' "$ready")
recsys-predict "$address" --random >predicted.json || { cat serve.log >&2; exit 1; }
client/bin/python -I - "$address" <<'PROGRAM'
import sys
import numpy as np
from recsys.client import Client
from serve.client.sampling import example_request

with Client(sys.argv[1], timeout_s=60) as client:
    answer = client.predict(**example_request(client.metadata(), 2, np.random.default_rng(0)))
assert answer["score"].shape == (2,) and "torch" not in sys.modules
PROGRAM
kill "$server"
cat <&"$answers" >stopped.json
trap - EXIT
run_s=$SECONDS

engine=$(python -c 'import json, sys; print(json.loads(sys.argv[1])["engine"])' "$ready")
torch=$(python -c 'from importlib.metadata import version; print(version("torch"))')
system=$(. /etc/os-release && echo "$PRETTY_NAME")
size() { { du -smL "$@" 2>/dev/null || true; } | awk '{sum += $1} END {print sum + 0}'; }
cuda=$(size all/lib/python3.*/site-packages/{nvidia,triton})
echo "$system | $(ldd --version | head -1 | grep -o '[0-9.]*$') | $(python -V | cut -d' ' -f2) | $installer | torch $torch |" \
  "$(size all) MB, of which CUDA $cuda | client $(size client) MB | installed in $installed_s s | $engine engine |" \
  "trained, exported, served, predicted in $run_s s"
