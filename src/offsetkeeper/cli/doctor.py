"""The command doctor: finds what is wrong or slow in a pipeline's set-up, and says what to do."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from typing import Annotated

import typer

from offsetkeeper.cli import options
from offsetkeeper.cli.output import say, say_json
from offsetkeeper.kafka.replication import Severity
from offsetkeeper.operate.doctor.collect import examine
from offsetkeeper.operate.doctor.rules import diagnose


class Reads(StrEnum):
    """The reader of the pipeline."""

    AUTO = "auto"
    PACKED = "packed"
    CONNECTOR = "connector"
    SPARK = "spark"


Reader = Annotated[
    Reads,
    typer.Option(
        help="The pipeline's reader: auto, packed, connector, or spark (Spark's Kafka source without offsetkeeper)."
    ),
]
Spark = Annotated[
    list[str] | None,
    typer.Option(help="A setting of Spark or an option of its Kafka source, as name=value; may be repeated."),
]
Outputs = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        help="What the pipeline writes into: the URL of a database, or a topic on the brokers; may be repeated.",
    ),
]


def doctor(
    group: options.Group,
    *,
    store: options.Store = "",
    brokers: options.Brokers = "",
    kafka: options.Kafka = None,
    topic: options.Topics = None,
    output: Outputs = None,
    reader: Reader = Reads.AUTO,
    spark: Spark = None,
    as_json: options.AsJson = False,
) -> None:
    """Find what is wrong or slow in a pipeline's set-up, and say what to do. Exit code 1 if a finding is an error.

    The command checks the store, the history, the installed Spark and, if brokers are given, Kafka. With --output it
    also says what the servers of the outputs may lose. It changes nothing. For a group that has no stored offsets yet,
    name its topics with --topic.

    Example: offsetkeeper doctor orders --brokers localhost:9092 --reader connector
    """
    chosen = options.settings(store, brokers, kafka)
    with ExitStack() as stack:
        ledger = stack.enter_context(options.open_ledger(chosen, group, read_only=True))
        cluster = stack.enter_context(options.open_cluster(chosen)) if chosen.brokers else None
        facts = examine(
            ledger,
            cluster,
            topics=topic or chosen.topics,
            reader=reader.value,
            outputs=output or (),
            spark=dict(options.pair("--spark", each) for each in spark or []),
        )
        if not facts.store.error and not topic:
            options.check_stored(ledger)
    findings = diagnose(facts)
    if as_json:
        say_json({"group": group, "findings": [each.as_dict() for each in findings]})
    else:
        for each in findings:
            say(f"{each.severity}: {each.where}: {each.what}\n  {each.rule}: {each.remedy}")
        if cluster is None:
            say("Kafka was not checked: give --brokers")
        say(f"found: {len(findings)}" if findings else "nothing found")
    if any(each.severity is Severity.ERROR for each in findings):
        raise typer.Exit(1)
