"""A pipeline takes over from a program that kept its offsets by itself, by the commands of the page, and gives back."""

from __future__ import annotations

import re
import secrets
import shlex
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from docs.pages import ROOT
from offsetkeeper import Batch, Pipeline
from offsetkeeper.cli.main import app
from offsetkeeper.sinks import Table
from offsetkeeper.testing.kafka import KafkaServer

LEFT = {0: 5, 1: 4}
"""The offsets that the old program has stored, by partition."""
WRITTEN = {0: 6, 1: 4}
"""How far its output is: it died between its output and its offsets, so one record comes again."""
ENDS = {0: 10, 1: 10}
"""The end of each partition."""
MORE, LATER = {0: 13, 1: 13}, {0: 15, 1: 15}
"""How far the old program goes on when it is back, and where the topic ends at last."""
Reads = Callable[[], Mapping[int, int]]
Writes = Callable[[Mapping[int, int]], object]
LIMIT_S = 60
_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(page: str, word: str) -> list[str]:
    """Return the lines of the first shell block of a page that has this word."""
    found = _BLOCK.findall((ROOT / "docs" / page).read_text("utf-8"))
    block = next(block for block in found if word in block)
    return [line.partition("  #")[0].strip() for line in block.splitlines() if line.strip()]


@dataclass
class Switch:
    """A topic `orders` of two partitions, ten records each, of which an old program has written some to a table.

    Attributes:
        spark, kafka: of the whole test run.
        topic: its name in this test.
        folder: the test's own; the table is in `output.db`.
        store: URL of the old program's offsets.
        page: whose commands are run.
        places: what stands in this test for words of the page; regular expressions.
        group: its group.
    """

    spark: SparkSession
    kafka: KafkaServer
    topic: str
    folder: Path
    store: str
    page: str = "migrate-dstreams.md"
    group: str = field(default_factory=lambda: f"shop-{secrets.token_hex(4)}")
    places: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Say where files are."""
        files = {r"\S+\.csv": f"{self.folder}/offsets.csv", r"sqlite:///\S+": f"sqlite:///{self.folder}/offsets.db"}
        self.places = {**files, **self.places}

    def begin(self) -> None:
        """Produce the records, and do what the old program has done."""
        self.produce(ENDS)
        self.make_output()
        self.write_rows({0: 0, 1: 0}, WRITTEN)

    def make_output(self) -> None:
        """Make the table."""
        with closing(sqlite3.connect(self.folder / "output.db")) as output, output:
            output.execute(
                'create table rows ("partition" int, "offset" int, item text, primary key ("partition", "offset"))'
            )

    def write_rows(self, begins: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Write the rows of these records as the old program does: one that is there already is an error."""
        rows = [(number, at, f"{number}/{at}") for number, end in ends.items() for at in range(begins[number], end)]
        with closing(sqlite3.connect(self.folder / "output.db")) as output, output:
            output.executemany("insert into rows values (?, ?, ?)", rows)

    def produce(self, ends: Mapping[int, int], begins: Mapping[int, int] | None = None) -> None:
        """Produce records whose value is `partition/offset`, from the beginning or from these offsets on."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for number, end in ends.items():
            for at in range((begins or {}).get(number, 0), end):
                producer.produce(self.topic, f"{number}/{at}", partition=number)
        assert producer.flush(LIMIT_S) == 0

    def produce_values(self, *values: str) -> None:
        """Produce records with these values to the first partition."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for value in values:
            producer.produce(self.topic, value, partition=0)
        assert producer.flush(LIMIT_S) == 0

    def run(self, line: str, status: int = 0) -> str:
        """Run a command of a page, with the test's names in the place of the page's; return what it printed."""
        real = line
        for word, value in {**self.places, r"\bshop\b": self.group, r"\borders\b": self.topic}.items():
            real = re.sub(word, value, real)
        program, *words = shlex.split(real)
        assert program == "offsetkeeper", line
        given = {"OFFSETKEEPER_STORE": self.store, "OFFSETKEEPER_BROKERS": self.kafka.bootstrap}
        done = CliRunner().invoke(app, words, env=given)
        assert done.exit_code == status, f"{line}: {done.output} {done.exception!r}"
        return done.stdout

    def follow(self, word: str) -> list[str]:
        """Run the commands of the page's block that has this word; return what each printed."""
        return [self.run(line) for line in commands(self.page, word)]

    def run_pipeline(self) -> None:
        """Run the new program until it has caught up: rows of a known key are written over."""
        table = Table(f"sqlite:///{self.folder}/output.db", "rows", mode="upsert", key=("partition", "offset"))
        pipeline = Pipeline(group=self.group, store=self.store, brokers=self.kafka.bootstrap, topics=[self.topic])
        pipeline.run(self.spark, self.rows, sink=table, guarantee="exactly_once", until="caught_up")

    @staticmethod
    def rows(frame: DataFrame, batch: Batch) -> DataFrame:
        """What goes into the table."""
        del batch
        return frame.selectExpr("partition", "offset", "cast(value as string) as item")

    def check_output(self, ends: Mapping[int, int]) -> None:
        """Check that each record up to these ends is in the table once."""
        with closing(sqlite3.connect(self.folder / "output.db")) as output:
            found = output.execute('select "partition", "offset", item from rows order by 1, 2').fetchall()
        assert found == [(number, at, f"{number}/{at}") for number, end in ends.items() for at in range(end)]

    def there_and_back(self, read: Reads, write: Writes, *, copy: bool = False) -> None:
        """Take over from what the old program left; give back to it; take over again: all as the page says.

        Args:
            read: reads the old program's offsets as it does.
            write: writes them as it does.
            copy: whether the store publishes a copy of the positions there, so that an edit of it does not count.
        """
        self.begin()
        write(LEFT)
        shown, planned = self.follow("plan")
        for number, offset in LEFT.items():
            assert re.search(rf"{self.topic}\t{number}\t{offset}\b", shown), shown
        assert "2 resume" in planned
        exported = self.run("offsetkeeper reset shop --all-topics --to-current --export")
        assert sorted(exported.split()) == [f"{self.topic},{number},{offset}" for number, offset in LEFT.items()]
        self.run_pipeline()
        self.check_output(ENDS)
        lag, verified, history = self.follow("verify")
        assert "0 records behind" in lag
        assert "0 findings" in verified
        assert "2 positions that another program has stored are taken over" in history
        assert read() == ENDS
        self.old_program_goes_on(read, write)
        if copy:
            rows = [f"{self.topic},{number},{offset}" for number, offset in read().items()]
            (self.folder / "offsets.csv").write_text("\n".join(rows), "utf-8")
            self.follow("the old program went on")
        self.produce(LATER, MORE)
        self.run_pipeline()
        self.check_output(LATER)
        assert read() == LATER

    def old_program_goes_on(self, read: Reads, write: Writes) -> None:
        """Process three further records of each partition from where the rows say, as the old program would."""
        begins = read()
        self.produce(MORE, begins)
        self.write_rows(begins, MORE)
        write(MORE)
