"""The doctor's rules: from facts about a pipeline's set-up to findings, each with what to do. Pure.

Each rule is one function. It gives no finding if a fact that it needs is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil

from offsetkeeper.core.commands import command
from offsetkeeper.core.duration import duration
from offsetkeeper.core.model import Entry, Snapshot
from offsetkeeper.kafka.replication import ERROR, NOTE, WARNING, Finding, Severity, TopicFacts, replication
from offsetkeeper.kafka.verification import REMEDY, may_tear
from offsetkeeper.operate import words
from offsetkeeper.operate.doctor.durability import durability
from offsetkeeper.operate.doctor.facts import Facts, Runs, ServerFacts, StoreFacts
from offsetkeeper.operate.status import ALARMING, OPEN_S, Status
from offsetkeeper.readers.releases import connector_package, packed_streams

Rule = Callable[[Facts], Iterator[Finding]]

_SAID_BY_TOPICS = {Status.REFUSED, Status.TOPIC_GONE, Status.HELD_BACK}
_DAY_S = 86_400.0
_SKEW_S = 5.0
_NEAR = 2  # a limit below this multiple of the longest pause is soon reached
_EXPIRING = 0.5  # share of the time for which Kafka keeps a group's offsets
_LONG_WAIT_MS = 100
_SPARKS_WAIT_MS = 500
_SPARKS_POOL = 64
_CAPACITY, _EXECUTORS = "spark.kafka.consumer.cache.capacity", "spark.executor.instances"
_SPARKS_WAIT, _WAIT = "kafka.fetch.max.wait.ms", "fetch.wait.max.ms"
_DIGITS = re.compile(r"-?[0-9]{1,10}")  # numbers of Java and of librdkafka


def diagnose(facts: Facts) -> list[Finding]:
    """Return the findings, the worst first."""
    found = [finding for rule in _RULES for finding in rule(facts)]
    return sorted(found, key=lambda finding: list(Severity).index(finding.severity))


def runs_of(snapshot: Snapshot, entries: Sequence[Entry], now_ms: int) -> Runs:
    """Return what a group's newest history, newest entry first, says about its runs."""
    if not entries:
        return Runs()
    silence_s = max(0, now_ms - entries[0].at_ms) / 1000
    gaps = [(entry.at_ms - before.at_ms) / 1000 for entry, before in pairwise(entries) if entry.event == "acquire"]
    gaps += [] if snapshot.owner else [silence_s]
    batch = snapshot.pending and (snapshot.pending.token, snapshot.pending.sequence)
    begun = [entry for entry in entries if entry.event == "begin" and (entry.token, entry.sequence) == batch]
    # Another program that takes it over begins it again: the first begin counts.
    pending_s = max(0, now_ms - begun[-1].at_ms) / 1000 if begun else None
    return Runs(max(gaps, default=None), silence_s, pending_s)


def _store(facts: Facts) -> Iterator[Finding]:
    store = facts.store
    if store.error:
        remedy = "fix the problem in the message; until then no run can start or commit"
        yield Finding("store-away", ERROR, store.address, store.error, remedy)
    elif "commit" not in store.abilities:
        what = "is read-only: the lag can be measured, but no run can keep its offsets there"
        yield Finding("store-read-only", NOTE, store.address, what, "copy the group to another store to run from it")
    elif "fence" not in store.abilities:
        what = "cannot prevent a second run of the group from committing too"
        yield Finding("store-no-fence", ERROR, store.address, what, "use a store that can: docs/stores.md has a table")


def _edited(facts: Facts) -> Iterator[Finding]:
    if facts.store.edited:
        what, _, remedy = facts.store.edited.rpartition(". ")
        yield Finding("offsets-edited", WARNING, facts.store.address, what, remedy)


def _redis(facts: Facts) -> Iterator[Finding]:
    store, settings = facts.store, facts.store.settings
    if settings.get("appendonly") == "no":
        what = "has no append-only file: a restart loses everything that was committed since its last snapshot"
        yield Finding("redis-not-durable", ERROR, store.address, what, "set appendonly yes and appendfsync always")
    elif settings.get("appendfsync") in {"no", "everysec"}:
        lost = "a second" if settings["appendfsync"] == "everysec" else "half a minute"
        what = f"has appendfsync {settings['appendfsync']}: if its machine stops, up to {lost} of commits is lost"
        yield Finding("redis-fsync", WARNING, store.address, what, "set appendfsync always")
    policy = settings.get("maxmemory-policy", "noeviction")
    if settings.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
        what = f"deletes any key, offsets too, when its memory is full (maxmemory-policy {policy})"
        remedy = "set maxmemory-policy noeviction or a volatile policy, or use a separate Redis for the offsets"
        yield Finding("redis-evicts", ERROR, store.address, what, remedy)


def _durability(facts: Facts) -> Iterator[Finding]:
    servers: list[StoreFacts | ServerFacts] = [facts.store, *facts.outputs]
    for server in servers:
        yield from durability(server.address, server.settings, server.hidden)


def _outputs(facts: Facts) -> Iterator[Finding]:
    for output in facts.outputs:
        if output.error:
            remedy = "fix the problem in the message; until then no run can write there"
            yield Finding("output-away", ERROR, output.address, output.error, remedy)
    out = facts.topics_out
    if out and out.error:
        remedy = "check the address, the network and the credentials"
        yield Finding("output-away", ERROR, out.brokers, out.error, remedy)
    for topic in out.topics if out else ():
        if not topic.exists:
            what = "the topic of an output does not exist in Kafka"
            yield Finding("topic-gone", ERROR, f"topic {topic.topic}", what, "create the topic, or correct its name")


def _ttl(facts: Facts) -> Iterator[Finding]:
    ttl_s, gap_s = float(facts.store.settings.get("ttl", "0")), facts.runs.gap_s
    if ttl_s and gap_s is not None and ttl_s < _NEAR * gap_s:
        gone = ttl_s <= gap_s
        pause = f"the longest pause between runs was {duration(gap_s)}"
        what = f"forgets a group's offsets after {duration(ttl_s)}, and {pause}"
        remedy = "remove ttl from the store's URL, or make it longer than the longest pause you expect"
        yield Finding("ttl-short", ERROR if gone else WARNING, facts.store.address, what, remedy)


def _clock(facts: Facts) -> Iterator[Finding]:
    ahead_s = facts.store.ahead_s or 0.0
    remedy = "synchronise both machines by NTP: ages, lag in seconds and the history depend on it"
    if abs(ahead_s) > _SKEW_S:
        what = f"its clock is {'ahead of' if ahead_s > 0 else 'behind'} this machine's by {abs(ahead_s):.0f} s or more"
        yield Finding("clock-skew", WARNING, facts.store.address, what, remedy)
    for topic in _topics(facts):
        if topic.ahead_s > _SKEW_S:
            what = f"its newest record is {topic.ahead_s:.0f} s from the future, by this machine's clock"
            yield Finding("clock-skew", WARNING, f"topic {topic.topic}", what, remedy.replace("both", "producers'"))


def _pending(facts: Facts) -> Iterator[Finding]:
    if (facts.runs.pending_s or 0.0) > _DAY_S:
        what = f"a batch was begun {duration(facts.runs.pending_s or 0.0)} ago and never committed"
        remedy = "start the pipeline, which repeats the batch; if it fails, offsetkeeper show prints its ranges"
        yield Finding("pending-old", WARNING, facts.store.address, what, remedy)


def _brokers(facts: Facts) -> Iterator[Finding]:
    kafka = facts.kafka
    if kafka is None:
        return
    if kafka.error:
        remedy = "check the address, the network, security.protocol and the credentials"
        yield Finding("brokers-away", ERROR, kafka.brokers, kafka.error, remedy)
    for address, error in kafka.nodes.items():
        if error:
            what = f"Kafka advertises this address to clients, but it cannot be reached from here: {error}"
            remedy = "correct advertised.listeners of that broker, or name resolution and firewall of this machine"
            yield Finding("listener-unreachable", ERROR, f"broker {address}", what, remedy)


def _permissions(facts: Facts) -> Iterator[Finding]:
    known = [kafka for kafka in (facts.kafka, facts.topics_out) if kafka]
    for where, refusal in ((kafka.brokers, refusal) for kafka in known for refusal in kafka.refused):
        severity = ERROR if refusal.needed else NOTE
        what, remedy = f"no permission to {refusal.what}", "add an ACL for this permission"
        yield Finding("not-permitted", severity, where, what, remedy)


def _topics_there(facts: Facts) -> Iterator[Finding]:
    group = facts.standing.group if facts.standing else "GROUP"
    for topic in _topics(facts):
        if not topic.exists:
            what = "the topic does not exist in Kafka" + ", but the group has positions of it" * topic.read
            remedy = "create the topic, or correct the brokers' address"
            if topic.read:
                what += ": if it was deleted, its unread records are lost"
                remedy += "; if the topic is not needed any more, offsetkeeper forget takes its positions away"
            yield Finding("topic-gone", ERROR, f"topic {topic.topic}", what, remedy)
        elif topic.elsewhere:
            what = "the brokers are of another Kafka cluster than the stored offsets: runs are refused, nothing is read"
            remedy = "correct the brokers' address; to go on in the other cluster, use offsetkeeper reset --to-datetime"
            yield Finding("another-cluster", ERROR, f"topic {topic.topic}", what, remedy)
        elif topic.recreated:
            what = "it was deleted and created again since the group read it: the stored offsets now mean other records"
            reset = command("reset", group, f"--topic {topic.topic} --to-earliest")
            remedy = f"{reset}, or Policies(recreated='beginning')"
            yield Finding("topic-recreated", ERROR, f"topic {topic.topic}", what, remedy)
        elif topic.beyond:
            what = f"{topic.beyond} positions are beyond the end of their partition: runs are refused, nothing is read"
            remedy = (
                "find out whether the topic was created again or the brokers lost records; then use offsetkeeper reset"
            )
            yield Finding("position-beyond", ERROR, f"topic {topic.topic}", what, remedy)
        if topic.cut:
            what = (
                f"the log of {topic.cut} partitions was cut before the position, by the election of a leader that "
                "lacked records: runs are refused, nothing is read"
            )
            remedy = "offsetkeeper plan shows where; then Policies(cut=…) or offsetkeeper reset says where to go on"
            yield Finding("topic-cut", ERROR, f"topic {topic.topic}", what, remedy)


def _status(facts: Facts) -> Iterator[Finding]:
    """Say what `offsetkeeper lag` says, unless a finding on a topic has it already: both agree on what is an error."""
    found = facts.standing
    said = [*_topics_there(facts), *_transactions(facts)] if found and found.status in _SAID_BY_TOPICS else []
    if found is None or found.status not in words.NEXT or said:
        return
    what = f"{found.status}: {words.plain(words.MEANINGS[found.status], '')}"
    if found.status is Status.LOSING_DATA:
        of = found.total
        left = f"the next one is deleted in {duration(of.seconds_left)}" if of.seconds_left is not None else ""
        what += "".join(f"; {each}" for each in (f"{of.lost} are lost" if of.lost else "", left) if each)
    severity = ERROR if found.status in ALARMING else WARNING
    remedy = words.plain(words.NEXT[found.status], found.group)
    yield Finding(found.status.replace(" ", "-"), severity, f"group {found.group}", what, remedy)


def _transactions(facts: Facts) -> Iterator[Finding]:
    for topic in _topics(facts):
        if topic.open is None or topic.open[-1] <= OPEN_S:
            continue
        partition, offset, age_s = topic.open
        what = f"a transaction has been open for {duration(age_s)}, from offset {offset} of partition {partition} on"
        tool = f"kafka-transactions.sh --bootstrap-server {facts.kafka.brokers if facts.kafka else ''}"
        remedy = (
            "no record after it can be read until its producer ends it. If that producer is gone: "
            f"{tool} find-hanging --topic {topic.topic} --partition {partition}; then {tool} abort "
            f"--topic {topic.topic} --partition {partition} --start-offset {offset}"
        )
        yield Finding("transaction-open", ERROR, f"topic {topic.topic}", what, remedy)


def _unverified(facts: Facts) -> Iterator[Finding]:
    if facts.kafka and facts.kafka.unverified:
        severity, writes = (WARNING, "") if facts.topics_out else (NOTE, ", if producers of these topics use any")
        what = f"{may_tear(facts.kafka.unverified)}{writes}"
        yield Finding("transactions-unverified", severity, facts.kafka.brokers, what, REMEDY)


def _retention(facts: Facts) -> Iterator[Finding]:
    gap_s = facts.runs.gap_s
    for topic in _topics(facts):
        kept_s = float(topic.settings.get("retention.ms", "-1")) / 1000
        if gap_s and 0 <= kept_s < _NEAR * gap_s and "delete" in topic.settings.get("cleanup.policy", "delete"):
            what = f"keeps records for {duration(kept_s)}, and the longest pause between runs was {duration(gap_s)}"
            remedy = "make retention.ms longer than the longest pause you expect, or make the pauses shorter"
            severity = ERROR if kept_s <= gap_s else WARNING
            yield Finding("retention-short", severity, f"topic {topic.topic}", what, remedy)


def _retention_bytes(facts: Facts) -> Iterator[Finding]:
    """Judge retention.bytes by how far back the topic reaches now: how long it keeps a record is not fixed."""
    gap_s = facts.runs.gap_s
    for topic in _topics(facts):
        kept_s = float(topic.settings.get("retention.ms", "-1")) / 1000
        by_bytes = topic.span_s is not None and (kept_s < 0 or topic.span_s < kept_s)
        if gap_s and by_bytes and (span_s := topic.span_s or 0.0) < _NEAR * gap_s:
            what = (
                f"keeps {topic.settings['retention.bytes']} bytes of a partition (retention.bytes): one of them "
                f"reaches back {duration(span_s)} now, and the longest pause between runs was {duration(gap_s)}"
            )
            severity = ERROR if span_s <= gap_s else WARNING
            remedy = (
                "raise retention.bytes, or make the pauses shorter: the more records arrive, the less time they cover"
            )
            yield Finding("retention-bytes", severity, f"topic {topic.topic}", what, remedy)


def _replication(facts: Facts) -> Iterator[Finding]:
    for kafka in (facts.kafka, facts.store.kafka, facts.topics_out):
        yield from replication(kafka) if kafka else ()


def _group_offsets(facts: Facts) -> Iterator[Finding]:
    kafka, silence_s = facts.kafka, facts.runs.silence_s
    kept_s = kafka.offsets_retention_s if kafka else None
    if kafka is None or kept_s is None or silence_s is None or not kafka.published or silence_s < _EXPIRING * kept_s:
        return
    what = (
        f"Kafka keeps the offsets of a group without members for {duration(kept_s)}, and the newest change is "
        f"{duration(silence_s)} old: after that time they are deleted, and lag tools that read them show nothing"
    )
    remedy = "commit more often, or raise offsets.retention.minutes; offsetkeeper's own ledger is not deleted"
    yield Finding("group-offsets-expire", WARNING, kafka.brokers, what, remedy)


def _connector(facts: Facts) -> Iterator[Finding]:
    spark = facts.spark
    if spark is None or not _connector_reads(facts):
        return
    package = connector_package(spark.version)
    where = f"Spark {spark.version}"
    if not spark.connectors and facts.reader == "auto":
        what = "has no Kafka connector, but reader='auto' needs it for queries on this Spark"
        remedy = f"for Pipeline.start, add {package} to spark.jars.packages; Pipeline.run needs no jar"
        yield Finding("no-connector", NOTE, where, what, remedy)
    elif not spark.connectors:
        remedy = f"add {package} to spark.jars.packages, or use reader='packed', which needs no jar"
        yield Finding("no-connector", ERROR, where, "has no Kafka connector", remedy)
    for version in spark.connectors:
        if version != spark.version:
            severity = WARNING if _minor(version) == _minor(spark.version) else ERROR
            what = f"has the Kafka connector of Spark {version}"
            yield Finding("connector-version", severity, where, what, f"use {package}, and no other connector")


def _connector_reads(facts: Facts) -> bool:
    """Whether Spark's connector reads; "auto" uses it only for queries if Spark is too old for the packed reader."""
    old = facts.spark is not None and not packed_streams(facts.spark.version)
    return facts.reader in {"connector", "spark"} or (facts.reader == "auto" and old)


def _pool(facts: Facts) -> Iterator[Finding]:
    spark, partitions = facts.spark, sum(topic.partitions for topic in _topics(facts))
    if spark is None or not _connector_reads(facts):
        return
    pool = _number(spark.settings, _CAPACITY, _SPARKS_POOL)
    executors = _number(spark.settings, _EXECUTORS, 1)
    each = None if executors is None else ceil(partitions / max(1, executors))
    if pool is not None and each is not None and each > pool:
        what = (
            f"its executors keep {pool} consumers each and read up to {each} partitions: each batch opens new "
            "connections"
        )
        remedy = f"set spark.kafka.consumer.cache.capacity={each} or more, or use reader='packed'"
        yield Finding("pool-small", WARNING, f"Spark {spark.version}", what, remedy)


def _fetch_wait(facts: Facts) -> Iterator[Finding]:
    own = facts.reader == "spark"
    settings = facts.spark.settings if facts.spark and own else facts.kafka.options if facts.kafka and not own else {}
    if not own and _WAIT not in settings:
        return
    name = _SPARKS_WAIT if own else _WAIT
    wait_ms = _number(settings, name, _SPARKS_WAIT_MS)
    if wait_ms is not None and wait_ms > _LONG_WAIT_MS and (facts.spark or not own):
        what = f"{name} is {wait_ms}: each partition that is read to its end may wait {wait_ms} milliseconds"
        yield Finding(
            "fetch-wait", WARNING, "the reader", what, f"set {name}=5, as offsetkeeper's readers do by default"
        )


def _no_number(facts: Facts) -> Iterator[Finding]:
    asked = [(facts.spark.settings, name) for name in (_CAPACITY, _EXECUTORS, _SPARKS_WAIT)] if facts.spark else []
    asked += [(facts.kafka.options, _WAIT)] if facts.kafka else []
    for settings, name in asked:
        if _number(settings, name, 0) is None:
            what = f"{name} is {settings[name]!r}, which is not a whole number: no run starts with it"
            yield Finding("no-number", ERROR, "the reader", what, "write only digits, without a unit, or leave it out")


def _number(settings: Mapping[str, str], name: str, default: int) -> int | None:
    """Return a setting, its default if it is not given, or None if it is not a number."""
    text = settings.get(name, str(default))
    return int(text) if _DIGITS.fullmatch(text) else None


def _topics(facts: Facts) -> Sequence[TopicFacts]:
    return facts.kafka.topics if facts.kafka else ()


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


_RULES: tuple[Rule, ...] = (
    *(_store, _edited, _redis, _durability, _outputs, _ttl, _clock, _pending),
    *(
        _brokers,
        _permissions,
        _topics_there,
        _transactions,
        _unverified,
        _status,
        _retention,
        _retention_bytes,
        _replication,
        _group_offsets,
    ),
    *(_connector, _pool, _fetch_wait, _no_number),
)
