"""Requests to ZooKeeper: answers waited for within a limit, and many nodes changed in one step."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from kazoo import exceptions

Rows = Mapping[str, bytes]
_TRIES = 5
_ANY = -1  # version of a node


class Request(NamedTuple):
    """One request under way: the client to ask, and until when it may take (by `time.monotonic`, in seconds)."""

    client: Any
    deadline: float

    def wait(self, result: Any) -> Any:
        """Return what kazoo's asynchronous result becomes."""
        return result.get(timeout=max(self.deadline - time.monotonic(), 0.001))

    def agree(self, path: str) -> Any:
        """Ask a majority of the servers; what is asked next is answered with all that was acknowledged before.

        For that it is a multi, as if something were to be written. A `sync` would be answered by a leader alone, also
        by one that was cut off and does not know of the next leader yet.

        Args:
            path: a node that may be read, there or not.
        """
        nothing = self.client.transaction()
        nothing.check(path, _ANY)
        return nothing.commit_async()

    def found(self, result: Any) -> Any:
        """Return the same, or None where the node does not exist."""
        try:
            return self.wait(result)
        except exceptions.NoNodeError:
            return None

    def existing(self, paths: Iterable[str]) -> set[str]:
        """Return which of the nodes exist, and others beside them; parents that do not exist are made."""
        parents = {path.rpartition("/")[0] for path in paths}
        asked = {parent: self.client.get_children_async(parent) for parent in parents}
        found: set[str] = set()
        for parent, answer in asked.items():
            children = self.found(answer)
            found.update(f"{parent}/{child}" for child in children or ())
            if children is None:
                self.wait(self.client.ensure_path_async(parent))
        return found

    def change(self, head: Callable[[Any], object], rows: Rows, known: Collection[str] | None = None) -> Any:
        """Do what `head` adds to a multi and, in the same, write the rows; return the result of `head`'s operation.

        Args:
            head: adds one operation.
            rows: data by path, of nodes that may exist or not.
            known: those thought to exist; where that is wrong, or None, it is looked up.

        Raises:
            KazooException: the operation of `head` failed, or others kept making and deleting the rows.
        """
        for _ in range(_TRIES):
            known = self.existing(rows) if known is None else known
            transaction = self.client.transaction()
            head(transaction)
            for path, data in rows.items():
                (transaction.set_data if path in known else transaction.create)(path, data)
            results = self.wait(transaction.commit_async())
            failed = [(number, result) for number, result in enumerate(results) if _is_cause(result)]
            if not failed:
                return results[0]
            number, cause = failed[0]
            if number == 0 or not isinstance(cause, exceptions.NoNodeError | exceptions.NodeExistsError):
                raise cause
            known = None
        raise cause


def _is_cause(result: object) -> bool:
    """Whether this made a multi fail; kazoo returns an error for each operation, and raises none."""
    aftermath = exceptions.RolledBackError | exceptions.RuntimeInconsistency
    return isinstance(result, Exception) and not isinstance(result, aftermath)
