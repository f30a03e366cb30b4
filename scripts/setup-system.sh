#!/usr/bin/env bash
# What the tests need from outside Python: the C client tools, strace, PostgreSQL, HAProxy, RabbitMQ, Java for Spark, a browser, node's amqplib and axe-core.
# On Debian as root it installs what is missing; elsewhere it says what to install, and goes on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }
java_major() { java -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p'; }
has_java_17() { has java && [ "$(java_major)" -ge 17 ] 2>/dev/null; }
# The node test's own folder says whether this tree has one.
wants_node() { compgen -G 'tests/e2e/node/*.js' >/dev/null || compgen -G 'tests/e2e/node/*.mjs' >/dev/null; }

missing=()
if ! has amqp-publish; then missing+=(amqp-tools); fi
if ! compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then missing+=(postgresql); fi
# A test runs the example of docs/failover.md with it.
if ! has haproxy; then missing+=(haproxy); fi
if ! has pgbouncer; then missing+=(pgbouncer); fi
if ! has curl; then missing+=(curl); fi
# `holt verify` watches sync calls with it, and a test plants a broker that makes none.
if ! has strace; then missing+=(strace); fi
# A migration is tested from a real RabbitMQ; the tests start their own.
if [ ! -x /usr/lib/rabbitmq/bin/rabbitmq-server ]; then missing+=(rabbitmq-server); fi
if [ -d tests/spark ] && ! has_java_17; then missing+=(default-jre-headless); fi
if wants_node && ! has npm; then missing+=(nodejs npm); fi
# The dead-letter report is looked at in a real browser.
if [ -f tests/spark/test_spark_report.py ] && ! has chromium; then missing+=(chromium); fi

if [ "${#missing[@]}" -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && has apt-get; then
    say "installing Debian packages: ${missing[*]}"
    apt-get update -qq
    # Servers are only wanted as programs: no package may start its service.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
      printf '#!/bin/sh\nexit 101\n' > "$policy"
      chmod 755 "$policy"
      trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    say "missing: ${missing[*]} (Debian names). Tests that need them fail and say so."
    say "install them with your package manager, or run this as root on Debian."
  fi
fi

if [ -d tests/spark ] && ! has_java_17; then
  say "Spark needs Java 17 or newer; found: $(java -version 2>&1 | head -n 1 || true)"
fi

if wants_node && has npm; then
  stamp="tests/e2e/node/node_modules/.holt-$(cksum < tests/e2e/node/package.json | tr ' ' '-')"
  if [ ! -f "$stamp" ]; then
    say "installing packages of node"
    npm install --prefix tests/e2e/node --no-package-lock --no-audit --no-fund --silent
    touch "$stamp"
  fi
fi
