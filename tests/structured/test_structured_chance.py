"""What depends on more than the records is found in Spark's own text of a plan, for each such function it has."""

from __future__ import annotations

import io
import re
import zipfile
from contextlib import redirect_stdout
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from offsetkeeper.engines.query_state import query_state
from offsetkeeper.errors import SettingsError

PACKAGE = "org/apache/spark/sql/catalyst/expressions/"
CHANCE = {
    "CallMethodViaReflection": [
        f"{name}('java.util.UUID', 'randomUUID')" for name in ("reflect", "java_method", "try_reflect")
    ],
    "CurrentTimestamp": ["current_timestamp()", "unix_timestamp()"],
    "InputFileBlockLength": ["input_file_block_length()"],
    "InputFileBlockStart": ["input_file_block_start()"],
    "InputFileName": ["input_file_name()"],
    "MonotonicallyIncreasingID": ["monotonically_increasing_id()"],
    "Now": ["now()"],
    "Rand": ["rand()", "random(7)"],
    "RandStr": ["randstr(5)", "randstr(5, 3)"],
    "Randn": ["randn()", "randn(3)"],
    "Shuffle": ["shuffle(array(value))"],
    "SparkPartitionID": ["spark_partition_id()"],
    "Uniform": ["uniform(0, 100)", "uniform(0, 100, 7)"],
    "Uuid": ["uuid()"],
}
"""Calls of each class of expressions that depends on chance, on the clock or on where it runs."""
CLOCK = ["current_date()", "curdate()", "cast(current_time() as string)", "localtimestamp()"]
NO_FUNCTION = {"CodegenFallback", "CurrentBatchTimestamp", "CurrentTimestampLike", "ExpressionWithRandomSeed"}
NO_FUNCTION |= {"ExpressionsEvaluator", "Nondeterministic", "NondeterministicUnaryRDG", "RDG"}
_MARK = re.compile(
    rb"catalyst/expressions/"
    rb"(Nondeterministic|ExpressionWithRandomSeed|RDG|NondeterministicUnaryRDG|CurrentTimestampLike)\b"
)


def test_each_class_of_spark_that_depends_on_chance_is_known_here() -> None:
    """A release with a new one needs its name in `query_state`."""
    (jar,) = (Path(pyspark.__path__[0]) / "jars").glob("spark-catalyst_*.jar")
    with zipfile.ZipFile(jar) as classes:
        names = [name for name in classes.namelist() if re.fullmatch(rf"{PACKAGE}\w+\.class", name)]
        found = {Path(name).stem for name in names if _MARK.search(classes.read(name))}
    assert {"Rand", "Uuid", "Now"} <= found
    assert found - NO_FUNCTION <= CHANCE.keys()


@pytest.mark.parametrize("call", [*(call for calls in CHANCE.values() for call in calls), *CLOCK])
def test_what_depends_on_more_than_the_records_is_refused(call: str, spark: SparkSession) -> None:
    records = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")

    def state_of(column: str) -> None:
        counts = records.withColumn("x", f.expr(column)).groupBy("x", f.window("timestamp", "1 minute")).count()
        text = io.StringIO()
        with redirect_stdout(text):
            counts.explain("extended")
        assert query_state(text.getvalue()).reach_s == 60

    state_of("value")
    with pytest.raises(SettingsError, match="depends on more than the records"):
        state_of(call)
