"""What holds for each store on a server that asks for a password: who is not let in is told, and shown no password."""

from __future__ import annotations

import traceback
from typing import ClassVar, NamedTuple

import pytest

from offsetkeeper.errors import Refused, StoreUnavailable
from offsetkeeper.stores import open_store


class Doors(NamedTuple):
    """URLs of a store that does not open: what is wrong with each."""

    wrong_password: str
    no_password: str
    unknown_database: str
    closed_port: str
    unknown_host: str


def refusal(url: str, kind: type[Exception], caplog: pytest.LogCaptureFixture) -> str:
    """Load, check the kind of error and that nothing of the password is shown; return the message."""
    caplog.set_level("DEBUG")
    store = open_store(url)
    with pytest.raises(kind) as caught:
        store.load("g")
    store.close()
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + caplog.text + repr(store)
    assert "s3cret" not in shown
    assert "wr0ng" not in shown
    return str(caught.value)


class LetInSuite:
    """The tests; a class has a fixture `doors`, whose passwords are s3cret… and wr0ng."""

    said: ClassVar[Doors]
    """What the messages have."""

    @pytest.mark.parametrize("door", ["wrong_password", "no_password", "unknown_database"])
    def test_who_is_not_let_in_is_told_the_wrong_setting(
        self, doors: Doors, door: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is worth no other try."""
        assert getattr(self.said, door) in refusal(getattr(doors, door), Refused, caplog)

    @pytest.mark.parametrize("door", ["closed_port", "unknown_host"])
    def test_a_server_that_is_not_there_is_worth_another_try(
        self, doors: Doors, door: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It may come back."""
        found = refusal(getattr(doors, door), StoreUnavailable, caplog)
        assert getattr(self.said, door) in found
