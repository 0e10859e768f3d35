"""What is sent to executors needs no offsetkeeper there: all that it uses of this package goes along."""

from __future__ import annotations

import importlib
from types import FunctionType, ModuleType

import pytest

SENT = {
    "readers.streaming": "_SHIPPED",
    "sinks.cassandra.landing": "_SHIPPED",
    "sinks.delta.landing": "_SHIPPED",
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
