"""What is sent to executors needs no offsetkeeper there: all that it uses of this package goes along."""

from __future__ import annotations

import gc
import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import FunctionType, ModuleType
from unittest.mock import Mock

import pytest

from offsetkeeper.core import executors
from offsetkeeper.core.pickle_by_value import dumps, ship
from offsetkeeper.errors import OffsetkeeperError, UnknownTopic
from offsetkeeper.readers import consume
from offsetkeeper.readers.streaming import READING

SENT = {
    "readers.streaming": "_SHIPPED",
    "sinks.cassandra.landing": "_SHIPPED",
    "sinks.delta.landing": "_SHIPPED",
    "sinks.iceberg.landing": "_SHIPPED",
    "sinks.mysql": "_SHIPPED",
    "sinks.postgresql": "_SHIPPED",
    "sinks.topic": "_SHIPPED",
}


@pytest.mark.parametrize(("where", "name"), [*SENT.items(), ("readers.streaming", "READING")])
def test_all_functions_and_classes_that_are_used_go_along(where: str, name: str) -> None:
    """One that does not is imported where it runs, which fails on a cluster that has no offsetkeeper."""
    sent: tuple[ModuleType, ...] = getattr(importlib.import_module(f"offsetkeeper.{where}"), name)
    names = {module.__name__ for module in sent}
    used = {
        f"{module.__name__} uses {value.__module__}.{value.__qualname__}"
        for module in sent
        for value in vars(module).values()
        if isinstance(value, FunctionType | type)
        and value.__module__.startswith("offsetkeeper")
        and value.__module__ not in names
    }
    assert used == set()


@pytest.mark.parametrize("where", [where for where in SENT if where.startswith("sinks.")])
def test_no_class_that_goes_along_is_a_dataclass_with_slots(where: str) -> None:
    """The cloudpickle of Spark 3.5 sends one without its attributes: a task of `Topic` failed there with each batch."""
    sent: tuple[ModuleType, ...] = getattr(importlib.import_module(f"offsetkeeper.{where}"), SENT[where])
    classes = [value for module in sent for value in vars(module).values() if isinstance(value, type)]
    assert [each for each in classes if is_dataclass(each) and "__slots__" in vars(each)] == []


def test_an_error_that_another_module_has_does_not_go_along() -> None:
    """Each task told errors by their names, also those of modules that happened to be loaded: it had none of these."""
    private = type("Private", (UnknownTopic,), {"__module__": "offsetkeeper.kafka.start_plan"})
    found = executors._below(OffsetkeeperError).values()
    assert private not in found
    assert {each.__module__ for each in found} == {"offsetkeeper.errors"}


def test_no_module_of_ours_is_used_as_one() -> None:
    """It would be imported where it runs."""
    sent = {
        module
        for where, name in SENT.items()
        for module in getattr(importlib.import_module(f"offsetkeeper.{where}"), name)
    }
    ours = {
        f"{module.__name__} uses {value.__name__}"
        for module in sent
        for value in vars(module).values()
        if isinstance(value, ModuleType) and value.__name__.startswith("offsetkeeper")
    }
    assert ours == set()


def test_what_a_process_keeps_from_read_to_read_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has read, such as a command, may send the reader afterwards."""
    monkeypatch.setitem(consume._kept, "source", lambda: None)
    sent = dumps(consume.kafka, READING)
    # In a process of its own: here the classes that arrive would take the place of those that other tests use.
    show = "import pickle, sys; print(pickle.load(sys.stdin.buffer).__globals__['_kept'])"
    done = subprocess.run([sys.executable, "-c", show], input=sent, capture_output=True, check=True)
    assert done.stdout.strip() == b"{}"


def doubled(number: int, batches: Iterator[int]) -> Iterator[int]:
    """Stand for the work of a task."""
    yield from (2 * number + each for each in batches)


def test_a_process_loads_code_once_and_leaves_what_is_loaded_out_of_its_garbage_collections_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What later tasks leave behind must still be found. A task that fails shows nothing of what a whole one loads."""
    frozen, loads = Mock(), Mock(wraps=pickle.loads)
    monkeypatch.setattr(sys, "_offsetkeeper", {}, raising=False)
    monkeypatch.setattr(gc, "freeze", frozen)
    monkeypatch.setattr(pickle, "loads", loads)
    with pytest.raises(TypeError):
        list(ship(doubled, (None,), ())([0]))
    assert not frozen.called
    assert [list(ship(doubled, (number,), ())([0, 1])) for number in (1, 2, 3)] == [[2, 3], [4, 5], [6, 7]]
    assert frozen.call_count == 1
    assert loads.call_count == 6  # the code in the first two tasks, and what each of the four is given
