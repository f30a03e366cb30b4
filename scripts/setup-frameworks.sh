#!/usr/bin/env bash
# Install what `make frameworks` runs, apart from the development tools: nameko changes pytest and needs eventlet.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-frameworks
[ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  "dramatiq[rabbitmq]>=2,<3" "faststream[rabbit]>=0.6,<0.8" "taskiq>=0.11,<0.14" "taskiq-aio-pika>=0.4,<0.7" "nameko>=2.14,<3"
command -v npm >/dev/null || { echo "npm is not installed: make setup-test installs it" >&2; exit 1; }
(cd tests/e2e/frameworks/node && npm install --silent --no-audit --no-fund)
