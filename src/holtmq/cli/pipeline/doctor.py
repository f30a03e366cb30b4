"""``holt pipeline doctor``: what is missing, in plain words.

Owns: the command line and the looks of the answer. Must not touch: the checks.
"""

import click

from holtmq.cli.pipeline.connection import PipelineBroker, with_pipeline_broker


@click.command()
@with_pipeline_broker
@click.option("--spark/--no-spark", help="Also start Spark, which takes 10 seconds or more.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(broker: PipelineBroker, spark: bool, as_json: bool) -> None:
    """Say in plain words what is missing: Java, packages, broker, permissions."""
    from holtmq.spark import doctor as examination

    findings = []
    for finding in examination.examine(
        broker.url,
        broker.token,
        broker.tls_ca,
        user=broker.user,
        password=broker.password,
        start_spark=spark,
    ):
        findings.append(finding)
        if not as_json:
            mark = click.style("ok     ", fg="green") if finding.good else click.style("missing", fg="red")
            click.echo(f"{mark}  {finding.what}: {finding.text}")
    if as_json:
        click.echo(examination.as_json(findings))
    if not all(finding.good for finding in findings):
        raise SystemExit(1)
    if not spark and not as_json:
        click.echo("Everything that can be checked without Spark is there; --spark also starts Spark once.")
