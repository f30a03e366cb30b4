#!/usr/bin/env bash
# Install what `make frameworks` runs, apart from the development tools: nameko changes pytest and needs eventlet.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-frameworks
[ -x "$venv/bin/python" ] || .venv/bin/python -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  "dramatiq[rabbitmq]>=2,<3" "faststream[rabbit]>=0.6,<0.8" "taskiq>=0.11,<0.14" "taskiq-aio-pika>=0.4,<0.7" "nameko>=2.14,<3"
missing=()
command -v go >/dev/null || missing+=(golang-go)
[ -d /usr/share/gocode/src/github.com/rabbitmq/amqp091-go ] || missing+=(golang-github-rabbitmq-amqp091-go-dev)
command -v ruby >/dev/null && ruby -e 'require "bunny"' 2>/dev/null || missing+=(ruby-bunny)
command -v php >/dev/null || missing+=(php-cli)
[ -f /usr/share/php/PhpAmqpLib/autoload.php ] || missing+=(php-amqplib)
if [ "${#missing[@]}" -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    echo "setup: missing: ${missing[*]} (Debian names); their programs fail" >&2
  fi
fi
command -v npm >/dev/null || { echo "npm is not installed: make setup-test installs it" >&2; exit 1; }
(cd tests/e2e/frameworks/node && npm install --silent --no-audit --no-fund)
