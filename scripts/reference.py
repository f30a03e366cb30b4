"""The pages under docs/reference, made from the code: commands, metrics, queue arguments and policy keys.

Owns: their layout, and what the code does not say about an argument. ``docs.py`` writes them;
tests tell when that was forgotten.
"""

from collections.abc import Iterator
from pathlib import Path

import click
from prometheus_client.metrics_core import Metric

from holtmq.broker.topology import policies
from holtmq.broker.topology.queue_arguments import REFUSED, RULES, WITHOUT_EFFECT
from holtmq.broker.topology.queue_options import QueueType
from holtmq.cli import main as holt
from holtmq.config import Config
from holtmq.config.settings import Data
from holtmq.http.operator import node_metrics
from holtmq.http.operator.object_metrics import RowFamilies, RowFamily
from holtmq.testing import TestBroker

MEANINGS = {
    "x-queue-type": "`classic`, `quorum` or `stream`",
    "x-message-ttl": "Milliseconds after which a waiting message expires.",
    "x-expires": "Milliseconds without use after which the queue is deleted.",
    "x-max-length": "The most messages that wait.",
    "x-max-length-bytes": "The most bytes of bodies that wait, or that a stream keeps.",
    "x-overflow": "What happens at the limit: `drop-head`, `reject-publish` or `reject-publish-dlx`.",
    "x-dead-letter-exchange": "Where rejected, expired and dropped messages go.",
    "x-dead-letter-routing-key": "Their routing key; without it they keep their own.",
    "x-max-priority": "The highest priority, to 255 (quorum: 31); `amqp.max_priority` bounds the levels.",
    "x-single-active-consumer": "One consumer gets all messages; the next takes over when it leaves.",
    "x-delivery-limit": "How often a message may be returned before it is dead-lettered; -1: no limit.",
    "x-retry-delay": "HoltMQ only. Milliseconds that a returned message waits before its next delivery.",
    "x-retry-multiplier": "HoltMQ only. By how much that wait grows with each return, 1 to 1000.",
    "x-cancel-requeue": "HoltMQ only. Whether cancelling a consumer requeues what it has not acked.",
    "x-consumer-timeout": "Milliseconds in which a consumer must ack a delivery.",
    "x-delayed-retry-type": "Which returned messages wait: `all`, `failed`, `returned` or `disabled`.",
    "x-delayed-retry-min": "Milliseconds of the first wait; it grows with the number of failures.",
    "x-delayed-retry-max": "Milliseconds of the longest wait.",
    "x-max-age": "How long a stream keeps messages: `7D`; units `Y`, `M`, `D`, `h`, `m`, `s`.",
    **{name: f"Checked and stored, without effect: {why}." for name, why in WITHOUT_EFFECT.items()},
}


def queue_arguments() -> str:
    """Every queue argument with the queue types that accept it, and whether a policy can set it."""
    out = ["| argument | meaning | classic | quorum | stream | policy key |", "|---|---|---|---|---|---|"]
    for name in RULES:
        kinds = ("no" if name in REFUSED[kind] else "yes" for kind in QueueType)
        key = name.removeprefix("x-")
        policy = f"`{key}`" if key in policies.KEYS else ""
        out.append(
            f"| `{name}` | {MEANINGS.get(name, 'See [AMQP](../amqp.md).')} | {' | '.join(kinds)} | {policy} |"
        )
    others = [key for key in policies.KEYS if f"x-{key}" not in RULES]
    operators = ", ".join(f"`{key}`" for key in sorted(policies.OPERATOR_KEYS))
    kept = ", ".join(f"`{key}`" for key in sorted(policies.WITHOUT_MEANING))
    out += [
        "",
        "A policy can also have: " + ", ".join(f"`{key}` (exchanges)" for key in others) + ".",
        "",
        f"An operator policy can have: {operators}.",
        "",
        f"Kept and listed, without effect: {kept}.",
        "",
    ]
    return "\n".join(out)


def metrics() -> str:
    """Every metric of ``/metrics``, then those that ``/metrics/per-object`` adds."""
    config = Config(data=Data(dir=Path("/")))  # a folder that exists: its free space is a metric
    with TestBroker(config=config) as broker:
        node = broker.call(lambda node: list(node_metrics.Node(node.http._context).collect()))
    out: list[str] = []
    for title, families in (
        ("`/metrics`", node),
        ("Added by `/metrics/per-object`", RowFamilies().all()),
    ):
        out += [f"## {title}", "", "| metric | type | labels | |", "|---|---|---|---|"]
        out += [_metric(one) for one in families]
        out.append("")
    return "\n".join(out)


def _metric(family: Metric | RowFamily) -> str:
    name = family.name + ("_total" if family.type == "counter" else "")
    if isinstance(family, RowFamily):
        names = list(family.labels)
    else:
        names = list(dict.fromkeys(label for sample in family.samples for label in sample.labels))
        names = names or list(getattr(family, "_labelnames", ()))  # without TLS or standbys: no sample
    labels = ", ".join(f"`{label}`" for label in names if label != "le")
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def commands() -> str:
    """Every command with its arguments and options."""
    return "\n".join(_command(holt, "holt", click.Context(holt, info_name="holt")))


def _command(command: click.Command, path: str, context: click.Context) -> Iterator[str]:
    if path != "holt":
        yield f"{'#' * min(path.count(' ') + 1, 4)} {path}"
        yield ""
        yield from _prose(command.help or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            if not child.hidden:
                yield from _command(child, f"{path} {name}", click.Context(child, context, info_name=name))
        return
    pieces = command.collect_usage_pieces(context)
    yield f"    {path} {' '.join(pieces)}"
    yield ""
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if path == "holt serve" or path == "holt config":
        options = [one for one in options if "__" not in (one.name or "")]
        yield "Every [setting](../configuration.md) is an option, too: `--<section>-<key>`."
        yield ""
    if options:
        yield "| option | |"
        yield "|---|---|"
        for one in options:
            yield f"| `{_names(one)}` | {_meaning(one)} |"
        yield ""


def _names(option: click.Option) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    if option.is_flag or option.count:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {' or '.join(map(str, option.type.choices))}"
    return f"{names} {option.metavar or option.type.name.upper()}"


def _meaning(option: click.Option) -> str:
    text = " ".join((option.help or "").split())
    if isinstance(option.show_default, str):
        text += f" Default: {option.show_default}."
    elif option.show_default and option.default is not None and not callable(option.default):
        text += f" Default: `{option.default}`."
    if option.envvar:
        text += f" Variable: `{option.envvar}`."
    return text.replace("|", "\\|").replace("<", "&lt;")


def _prose(text: str) -> Iterator[str]:
    for paragraph in text.replace("\b", "").strip().split("\n\n"):
        yield " ".join(paragraph.split()).replace("<", "&lt;")
        yield ""
