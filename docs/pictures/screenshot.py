"""Makes the pictures of the page of `offsetkeeper serve`, with a real broker, real runs and a real store.

    PATH=.venv/bin:$PATH python docs/pictures/screenshot.py

It takes five minutes, and needs a JDK 17 and a Chromium on the PATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, chdir
from functools import partial
from itertools import count
from pathlib import Path

from playwright.sync_api import sync_playwright
from pyspark.sql import DataFrame, SparkSession

from offsetkeeper import Batch, Pipeline
from offsetkeeper.demo.driver import session
from offsetkeeper.testing.kafka import KafkaServer

HERE = Path(__file__).parent
TOPICS = {"orders": 4, "clicks": 3, "payments": 2}
RATE = {"orders": 40, "clicks": 90, "payments": 15}
"""Records in a second."""
SPEED = {"orders": 120, "clicks": 60, "payments": 60}
"""Records that a group can process in a second: clicks falls behind."""
SECONDS = 300
PICTURES = (
    ("groups", "/", 400, "light"),
    ("group-light", "/groups/clicks", 680, "light"),
    ("group-dark", "/groups/clicks", 680, "dark"),
)
"""Name of the file, path and height of the page, colour scheme."""


def produce(brokers: str, stopped: threading.Event) -> None:
    """Write records of all topics until stopped."""
    from confluent_kafka import Producer  # noqa: PLC0415 - after the broker has started

    producer = Producer({"bootstrap.servers": brokers})
    for number in count():
        for topic, rate in RATE.items():
            for _ in range(rate):
                producer.produce(topic, b'{"item": "tea"}', key=str(number))
        producer.poll(0)
        if stopped.wait(1):
            break
    producer.flush(30)


def process(topic: str, stopped: threading.Event, frame: DataFrame, _: Batch) -> None:
    """Count the records, at the speed of the group."""
    stopped.wait(frame.count() / SPEED[topic])


def run(pipeline: Pipeline, spark: SparkSession, topic: str, stopped: threading.Event) -> None:
    """Run a group until it is stopped."""
    pipeline.run(spark, partial(process, topic, stopped))


def shoot(url: str) -> None:
    """Take the pictures: all groups, and the one that falls behind."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, path, height, scheme in PICTURES:
            context = chromium.new_context(viewport={"width": 1120, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(url + path)
            page.screenshot(path=HERE / f"{name}.png")
        chromium.close()


def main() -> None:
    """Start everything, wait, and take the pictures."""
    command = Path(sys.executable).with_name("offsetkeeper")
    stopped = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        kafka = stack.enter_context(KafkaServer())
        for topic, partitions in TOPICS.items():
            kafka.create_topic(topic, partitions)
        store = "sqlite:///offsets.db"
        spark = session()
        stack.callback(spark.stop)
        threads = [threading.Thread(target=produce, args=(kafka.bootstrap, stopped))]
        pipelines = []
        for topic in TOPICS:
            limit = 5 * SPEED[topic]
            made = Pipeline(group=topic, store=store, brokers=kafka.bootstrap, topics=[topic], max_records=limit)
            pipelines.append(made)
            threads.append(threading.Thread(target=run, args=(made, spark, topic, stopped)))
        for thread in threads:
            thread.start()
        server = subprocess.Popen(
            [command, "serve", "--store", store, "--brokers", kafka.bootstrap, "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(server.terminate)
        url = server.stdout.readline().split("Serving at ")[1].split(",")[0].rstrip("/\n")
        stopped.wait(SECONDS / 2)
        pipelines[-1].stop()
        stopped.wait(SECONDS / 2)
        shoot(url)
        stopped.set()
        for made in pipelines:
            made.stop()
        for thread in threads:
            thread.join(60)


if __name__ == "__main__":
    main()
