#!/usr/bin/env bash
# Build .venv and install the package into it: `setup.sh run` (the broker alone) or `setup.sh dev`.
# Does nothing when already done: a stamp in .venv carries the hash of pyproject.toml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

profile="${1:-dev}"
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

case "$profile" in
  run) extras="" ;;
  dev)
    extras="[dev]"
    # pyspark is a large download: only a tree that has Spark tests asks for it.
    if [ -d tests/spark ]; then extras="[dev,pipelines,delta,iceberg]"; fi
    ;;
  *) die "unknown profile '$profile' (run, dev)" ;;
esac

fingerprint="$(cat pyproject.toml scripts/setup.sh | cksum | tr ' ' '-')"
stamp=".venv/.holt-$profile$extras-$fingerprint"
# Scripts in a virtual environment hold its full path: in a folder that was moved they start nothing.
if [ -f .venv/.holt-home ] && [ "$(cat .venv/.holt-home)" != "$PWD" ]; then rm -rf .venv; fi
if [ -x .venv/bin/python ]; then
  if [ -f "$stamp" ]; then exit 0; fi
  # The development profile has all that running needs.
  if [ "$profile" = run ] && compgen -G ".venv/.holt-dev*-$fingerprint" >/dev/null; then exit 0; fi
fi

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
    if command -v "$candidate" >/dev/null 2>&1 && is_new_enough "$candidate"; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

if [ ! -x .venv/bin/python ] || ! is_new_enough .venv/bin/python; then
  python="$(find_python)" || die "HoltMQ needs Python 3.11 or newer; found: $(python3 --version 2>&1 || echo none).
       Install one (Debian: apt-get install python3 python3-venv) or name it: PYTHON=/path/to/python3.11 make ..."
  say "creating .venv with $("$python" --version)"
  # Debian ships venv without ensurepip in a package of its own; the first try says nothing then.
  if ! "$python" -m venv --clear .venv >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
      say "installing python3-venv"
      apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null
    fi
    "$python" -m venv --clear .venv || die "could not create .venv; on Debian: apt-get install python3-venv"
  fi
fi

say "installing holtmq$extras (a minute or two the first time)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".$extras"
if [ "$profile" = dev ]; then
  # A second release of Queen's client, for tests. Both are called "queen": it gets a folder of its own.
  rm -rf .venv/queen-0.15
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target .venv/queen-0.15 \
    'queen-mq==0.15.*'
fi
rm -f .venv/.holt-*
touch "$stamp"
printf '%s' "$PWD" > .venv/.holt-home
say "ready"
