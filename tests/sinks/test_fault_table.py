"""The table "Faults of outputs" in docs/proof.md: each output that it names for a fault has a test of it."""

from __future__ import annotations

import re

import pytest

from docs.pages import ROOT
from fixtures.rights_suite import RightsSuite
from offsetkeeper.testing.conformance import LanderConformance
from sinks.marks_suite import MarksSuite

FULL = "sinks/test_disk_full.py::test_a_full_disk_is_told_and_nothing_is_written"
SUITES = {
    "PostgreSQL": "sinks/test_table_postgresql_marks.py",
    "MySQL": "sinks/test_table_mysql_marks.py",
    "SQLite": "sinks/test_table_sqlite_marks.py",
    "Topic": "sinks/test_topic.py",
    "Files": "sinks/test_files_suite.py",
    "DeltaTable": "sinks/test_delta.py",
    "IcebergTable": "sinks/test_iceberg.py",
    "Cassandra": "sinks/test_cassandra_suite.py",
}


def in_suites(name: str) -> dict[str, str]:
    """Return a test of `LanderConformance` for each output."""
    return {output: f"{path}::{name}" for output, path in SUITES.items()}


TESTS = {
    "away at the start": {
        "PostgreSQL": "sinks/test_table_postgresql_refusals.py::test_a_server_that_is_not_there_is_told",
        "SQLite": "sinks/test_table_sqlite_marks.py::test_a_file_that_is_away_is_told_and_not_made",
        "Topic": "sinks/test_topic_faults.py::test_brokers_that_are_away_are_told_and_nothing_is_written",
        "Files": "sinks/test_files_trees.py::test_hdfs_that_is_away_is_told",
        "DeltaTable": "sinks/test_delta_frames.py::test_where_no_table_is_it_is_told_how_to_make_one",
        "IcebergTable": "sinks/test_iceberg_frames.py::test_a_catalog_that_is_not_there_is_told_without_its_password",
        "Cassandra": "sinks/test_cassandra_faults.py::test_a_server_that_is_away_at_the_start_is_said",
    },
    "away between the rows and the mark": {
        "PostgreSQL": "sinks/test_table_postgresql_marks.py::test_a_server_that_restarts_between_staging_and_landing",
        "MySQL": "sinks/test_table_mysql_marks.py::test_a_server_that_is_killed_between_staging_and_landing",
        "SQLite": "sinks/test_table_sqlite_marks.py::test_a_locked_file_is_tried_again",
        "Topic": "sinks/test_topic_faults.py::test_a_broker_that_dies_and_comes_back_leaves_the_batch_once",
        "Files": "sinks/test_files.py::test_a_rename_that_failed_is_told_for_what_it_is",
        "DeltaTable": "sinks/test_delta_landing.py::test_a_commit_that_fails_on_a_path_wrote_nothing",
        "IcebergTable": "sinks/test_iceberg_landing.py::test_a_commit_of_which_nothing_can_be_found_out_is",
        "Cassandra": "sinks/test_cassandra_faults.py::test_a_server_killed_between_rows_and_mark_is_not_committed_to",
    },
    "the answer to a landing is lost": {
        "PostgreSQL": "sinks/test_table_postgresql_marks.py::test_a_commit_that_is_cut_off_is_looked_up",
        "MySQL": "sinks/test_table_mysql_marks.py::test_a_commit_that_is_cut_off_is_looked_up",
        "SQLite": "sinks/test_table_sqlite_marks.py::test_a_commit_that_fails_half_way_is_told_as_unknown",
        "Topic": "sinks/test_topic_faults.py::test_a_commit_whose_answer_is_lost_is_told_as_unknown",
        "Files": "sinks/test_files.py::test_a_rename_that_was_done_though_an_error_was_told_is_looked_up",
        "DeltaTable": "sinks/test_delta_landing.py::test_an_answer_that_is_lost_is_looked_up",
        "IcebergTable": "sinks/test_iceberg_landing.py::test_an_answer_that_is_lost_is_looked_up_in_iceberg",
        "Cassandra": "sinks/test_cassandra_faults.py::test_a_mark_that_is_cut_off_is_unknown_and_then_looked_up",
    },
    "the server or the driver is killed while batches land": dict.fromkeys(
        ("PostgreSQL", "MySQL", "SQLite", "Topic", "Files", "DeltaTable", "IcebergTable"),
        "sinks/test_kills.py::test_a_",
    )
    | {"Cassandra": "sinks/test_cassandra_faults.py::test_a_server_killed_between_rows_and_mark_is_not_committed_to"},
    "the schema changes between batches": {
        "PostgreSQL": "sinks/test_table_postgresql_marks.py::test_a_table_that_changes_between_batches_is",
        "MySQL": "sinks/test_table_mysql_marks.py::test_a_table_that_changes_between_batches_is",
        "SQLite": "sinks/test_table_sqlite_marks.py::test_a_table_that_changes_between_batches_is",
        "Files": "sinks/test_files.py::test_a_schema_that_another_run_has_changed_since_it_was_staged_is_refused",
        "DeltaTable": "sinks/test_delta_frames.py::test_a_table_that_is_altered_between_batches_is_noticed",
        "IcebergTable": "sinks/test_iceberg_frames.py::test_a_table_that_is_altered_between_batches_is",
        "Cassandra": "sinks/test_cassandra.py::test_a_table_may_change_between_batches",
    },
    "the target is deleted and made again": {
        "PostgreSQL": "engines/test_engine_places.py::test_a_table_that_was_made_again_under_its_mark_is_refused",
        "SQLite": "sinks/test_table_sqlite_marks.py::test_a_table_that_is_made_again_after_it_was_staged_for",
        "Topic": "sinks/test_topic_faults.py::test_a_topic_that_is_deleted_takes_its_mark_along",
        "Files": "sinks/test_files.py::test_a_run_whose_folder_goes_back_writes_nothing_into_it",
        "DeltaTable": "sinks/test_delta_landing.py::test_a_table_that_is_made_again_has_no_mark",
        "IcebergTable": "sinks/test_iceberg_landing.py::test_a_table_that_is_made_again_is_behind",
        "Cassandra": "sinks/test_cassandra_faults.py::test_marks_and_rows_that_do_not_fit_the_ledger_are_refused",
    },
    "the mark is deleted": {
        "PostgreSQL": "sinks/test_table_postgresql_marks.py::test_marks_that_are_gone_stop_the_run",
        "MySQL": "sinks/test_table_mysql_marks.py::test_marks_that_are_gone_stop_the_run",
        "SQLite": "sinks/test_table_sqlite_marks.py::test_marks_that_are_gone_stop_the_run",
        "Topic": "sinks/test_topic_runs.py::test_a_mark_that_expired_with_a_batch_pending_is_refused",
        "Files": "sinks/test_files.py::test_a_mark_that_was_deleted_is_told",
        "IcebergTable": "sinks/test_iceberg_landing.py::test_a_mark_that_is_deleted_is_behind_and_a_wrong_one_is_told",
        "Cassandra": "sinks/test_cassandra_faults.py::test_marks_and_rows_that_do_not_fit_the_ledger_are_refused",
    },
    "the ledger is restored, or made anew": in_suites("test_a_ledger_from_a_backup_is_refused_until_adopted"),
    "the target is restored to before a batch that the ledger has not committed yet, and keeps the mark": dict.fromkeys(
        ("DeltaTable", "IcebergTable"),
        "engines/test_engine_restored.py::test_each_record_of_a_batch_that_a_restore_took_back_is_there_once",
    ),
    "the target is restored while rows land": {
        "DeltaTable": "sinks/test_delta_landing.py::test_nothing_lands_in_a_table_that_is_restored_between_the_look",
        "IcebergTable": "sinks/test_iceberg_landing.py::test_nothing_lands_in_a_table_that_is_rolled_back_between_the",
    },
    "the target is restored": in_suites("test_an_output_from_a_backup_is_refused_until_adopted"),
    "two groups, or two outputs of one": {
        "PostgreSQL": "sinks/test_table_postgresql_marks.py::test_groups_outputs_and_schemas_with_odd_names",
        "MySQL": "sinks/test_table_mysql_marks.py::test_groups_outputs_and_databases_with_odd_names_are_kept_apart",
        "SQLite": "sinks/test_table_sqlite_marks.py::test_groups_and_outputs_with_odd_names_are_kept_apart",
        "Topic": "sinks/test_topic_rows.py::test_names_of_all_kinds_keep_a_mark_each",
        "Files": "sinks/test_files.py::test_a_folder_is_of_one_group_and_output",
        "IcebergTable": "sinks/test_iceberg_landing.py::test_others_who_change_the_table_meanwhile_hold_nothing_up",
    },
    "a right is missing": {
        "PostgreSQL": "sinks/test_sql_rights.py::test_without_a_right_of_the_page_it_is_told",
        "MySQL": "sinks/test_sql_rights.py::test_without_a_right_of_the_page_it_is_told",
        "Topic": "sinks/test_topic_faults.py::test_a_user_without_permissions_is_told_which_are_missing",
        "Files": "sinks/test_files.py::test_a_folder_that_cannot_be_written_is_refused",
        "DeltaTable": "sinks/test_delta_rights.py::test_without_a_right_of_the_page_it_is_told",
        "Cassandra": "sinks/test_cassandra_rights.py::test_without_a_right_of_the_page_it_is_told",
    },
    "the disk is full": dict.fromkeys(
        ("SQLite", "Files", "DeltaTable", "IcebergTable"),
        "sinks/test_disk_full.py::test_a_full_disk_is_told_and_nothing_is_written",
    ),
    "a row names a partition or topic that does not exist": {
        "Topic": "sinks/test_topic_rows.py::test_a_row_that_kafka_cannot_take_is_told_and_none_is_written",
    },
    "another application has the transactional id": {
        "Topic": "sinks/test_topic_faults.py::test_another_application_with_the_same_transactional_id_disturbs",
    },
}


def documented() -> dict[str, list[str]]:
    """Return the outputs of each fault in the page's table."""
    section = (ROOT / "docs" / "proof.md").read_text("utf-8").split("## Faults of outputs\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (.*?) \| .* \| (.*?) \|$", section, re.MULTILINE)[1:]
    return {fault: outputs.replace("`", "").split(", ") for fault, outputs in lines}


def test_the_page_has_what_is_tested() -> None:
    assert documented() == {fault: list(tests) for fault, tests in TESTS.items()}


@pytest.mark.parametrize("test", sorted({test for tests in TESTS.values() for test in tests.values()}))
def test_the_test_is_there(test: str) -> None:
    path, name = test.split("::")
    text = (ROOT / "tests" / path).read_text("utf-8")
    inherited = any(
        f"({suite.__name__})" in text and any(each.startswith(name) for each in vars(suite))
        for suite in (LanderConformance, MarksSuite, RightsSuite)
    )
    assert f"def {name}" in text or (inherited and f"{name} = None" not in text)
