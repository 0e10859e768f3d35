"""What a store may be used for, by what it declares."""

from __future__ import annotations

import pytest

from offsetkeeper.core.store import Ability, check_writable
from offsetkeeper.errors import GuaranteeRefused
from offsetkeeper.stores.memory import MemoryStore


@pytest.mark.parametrize(
    ("lacking", "told"), [(Ability.COMMIT, "only be read"), (Ability.FENCE, "a second run")], ids=["commit", "fence"]
)
def test_a_store_that_cannot_keep_a_run_is_refused(lacking: Ability, told: str) -> None:
    store = MemoryStore("memory://unable")
    check_writable(store)
    store.abilities = MemoryStore.abilities - {lacking}
    with pytest.raises(GuaranteeRefused, match=told):
        check_writable(store)
