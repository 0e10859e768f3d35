"""When alarms fire and are resolved: the whole table, without a clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offsetkeeper.errors import SettingsError
from offsetkeeper.monitor.alerts import Alarm, Key, Measured, Notice, Rule, read_rules, step, untold, vanished
from offsetkeeper.operate.status import Status

FAR = Rule("far", "records", limit=100)
SLOW = Rule("slow", "seconds", limit=60, for_s=30)
DEAD = Rule("dead", "status", statuses=frozenset({Status.STOPPED, Status.STALLED}))
WORST = {Status.LOSING_DATA, Status.STOPPED}
BLIND = Measured(None, None, None, None)


def seen(records: int = 0, seconds: float = 0.0, status: Status = Status.OK, retention: float = 0.0) -> Measured:
    """A group as it was measured."""
    return Measured(status, records, seconds, retention, "")


class Clock:
    """Steps through polls, and keeps what was told."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules
        self.alarms: dict[Key, Alarm] = {}

    def at(self, seconds: float, **measured: Measured) -> list[str]:
        """Look, and return what is told."""
        self.alarms, notices = step(self.alarms, self.rules, measured, round(seconds * 1000))
        return [f"{each.state} {each.key.rule} {each.key.group}" for each in notices]


def test_an_alarm_is_told_once_when_it_fires_and_once_when_it_is_resolved() -> None:
    clock = Clock(FAR)
    assert clock.at(0, shop=seen(100)) == []
    assert clock.at(5, shop=seen(101)) == ["fired far shop"]
    assert clock.at(10, shop=seen(5000)) == []
    assert clock.at(15, shop=seen(100)) == ["resolved far shop"]
    assert clock.at(20, shop=seen(0)) == []
    assert clock.at(25, shop=seen(101)) == ["fired far shop"]


def test_a_condition_must_hold_for_its_time() -> None:
    clock = Clock(SLOW)
    assert clock.at(0, shop=seen(seconds=61)) == []
    assert clock.at(29, shop=seen(seconds=90)) == []
    assert clock.at(30, shop=seen(seconds=91)) == ["fired slow shop"]


def test_a_condition_that_ends_before_its_time_is_never_told() -> None:
    clock = Clock(SLOW)
    clock.at(0, shop=seen(seconds=61))
    assert clock.at(20, shop=seen(seconds=60)) == []
    assert clock.alarms == {}
    clock.at(25, shop=seen(seconds=61))
    assert clock.at(50, shop=seen(seconds=61)) == []
    assert clock.at(55, shop=seen(seconds=61)) == ["fired slow shop"]


def test_what_cannot_be_known_changes_nothing() -> None:
    """While Kafka is away nothing fires and nothing is resolved."""
    clock = Clock(FAR, SLOW)
    clock.at(0, shop=seen(101, 61))
    assert clock.at(60, shop=BLIND) == []
    assert clock.alarms[Key("far", "shop")].firing
    assert not clock.alarms[Key("slow", "shop")].firing
    assert clock.at(65, shop=seen(101, 61)) == ["fired slow shop"]
    assert clock.at(70, shop=seen()) == ["resolved far shop", "resolved slow shop"]


def test_where_some_ages_are_not_known_the_others_raise_an_alarm_and_resolve_none() -> None:
    clock = Clock(SLOW)
    partly = seen(seconds=61)._replace(undated=True)
    clock.at(0, shop=partly)
    assert clock.at(30, shop=partly) == ["fired slow shop"]
    assert clock.at(35, shop=seen()._replace(undated=True)) == []
    assert clock.at(40, shop=seen()) == ["resolved slow shop"]


def test_records_at_risk_stay_so_while_their_age_is_not_known() -> None:
    """As where a time-out hides the age of the first unread record: it is no younger since."""
    clock = Clock(Rule("old", "retention", limit=0.8), Rule("losing", "status", statuses=frozenset(WORST)))
    assert clock.at(0, shop=seen(retention=0.95, status=Status.LOSING_DATA)) == ["fired old shop", "fired losing shop"]
    for retention in (0.1, None):
        unknown = Measured(Status.BEHIND, 5, None, retention, "", undated=True)
        assert clock.at(5, shop=unknown) == []
    assert clock.at(10, shop=seen(retention=0.1)) == ["resolved old shop", "resolved losing shop"]
    assert clock.at(11, shop=seen(retention=0.95)) == ["fired old shop"]
    assert clock.at(12, shop=seen(retention=0.0)._replace(undated=True, kept=True)) == ["resolved old shop"]
    assert clock.at(15, shop=seen(status=Status.STOPPED)) == ["fired losing shop"]
    assert clock.at(20, shop=seen()._replace(undated=True)) == ["resolved losing shop"]  # no age is asked for it


def test_a_topic_that_is_deleted_resolves_no_alarm() -> None:
    """What was unread of it is lost; what the others have left says nothing of it."""
    clock = Clock(FAR)
    assert clock.at(0, shop=seen(101)) == ["fired far shop"]
    assert clock.at(5, shop=seen(3)._replace(partial=True)) == []
    assert clock.at(10, shop=seen(3)) == ["resolved far shop"]
    assert clock.at(15, shop=seen(3)._replace(partial=True)) == []
    assert clock.at(20, shop=seen(101)._replace(partial=True)) == ["fired far shop"]


def test_an_alarm_whose_notice_was_dropped_is_told_again_while_it_fires() -> None:
    alarms, first = step({}, (FAR,), {"shop": seen(101), "till": seen(102)}, 0)
    alarms, again = step(untold(alarms, first[:1]), (FAR,), {"shop": BLIND, "till": seen(103)}, 5)
    assert alarms[Key("far", "shop")].firing
    assert [(each.state, each.key.group, each.value, each.at_ms) for each in again] == [("fired", "shop", 101, 5)]
    assert [each.told_ms for each in untold(alarms, first).values()] == [5, None]  # a later notice replaces one
    assert step(alarms, (FAR,), {"shop": seen(104), "till": seen(105)}, 10)[1] == []
    _, ended = step(untold(alarms, again), (FAR,), {"shop": seen(), "till": seen(105)}, 15)
    assert [(each.state, each.key.group) for each in ended] == [("resolved", "shop")]


def test_an_alarm_of_a_group_that_is_gone_is_resolved() -> None:
    """It had no ledger here: other programs delete theirs as they like."""
    clock = Clock(FAR)
    clock.at(0, shop=seen(101))
    alarms, [notice] = step(clock.alarms, clock.rules, {}, 5000)
    assert alarms == {}
    assert (notice.state, notice.value) == ("resolved", None)
    assert notice.as_dict()["text"] == "resolved: far, group shop: it is gone"


def test_a_group_that_is_gone_with_its_ledger_resolves_nothing() -> None:
    """A store that was emptied is no reason to sleep."""
    spoilt = Rule("spoilt", "unreadable")
    clock = Clock(FAR, spoilt)
    assert clock.at(0, shop=seen(101), till=BLIND._replace(unreadable="x")) == ["fired far shop", "fired spoilt till"]
    alarms, notices = step(clock.alarms, clock.rules, {}, 5000, gone={"shop", "till"})
    assert (alarms, notices) == (clock.alarms, [])
    assert clock.at(10, shop=seen(), till=seen()) == ["resolved far shop", "resolved spoilt till"]


def test_a_group_that_is_gone_is_told_once_by_the_first_rule_that_is_for_it() -> None:
    rules = (Rule("till", "records", groups=("till",)), Rule("shops", "unreadable", groups=("shop*",)), FAR)
    notices = vanished(rules[:2], ["shop", "till", "other"], 7)
    assert [(each.state, *each.key) for each in notices] == [("gone", "shops", "shop"), ("gone", "till", "till")]
    assert [(each.state, *each.key) for each in vanished(rules, ["other"], 7)] == [("gone", "far", "other")]
    told = notices[0].as_dict()
    assert (told["state"], told["value"], told["at_ms"]) == ("gone", None, 7)
    assert told["text"] == "gone: shops, group shop: the store has its ledger no more"


@pytest.mark.parametrize("status", list(Status))
def test_a_status_raises_an_alarm_only_where_the_rule_names_it(status: Status) -> None:
    told = Clock(DEAD).at(0, shop=seen(status=status))
    assert told == (["fired dead shop"] if status in {Status.STOPPED, Status.STALLED} else [])


def test_from_one_named_status_to_another_is_no_change() -> None:
    clock = Clock(DEAD)
    clock.at(0, shop=seen(status=Status.STOPPED))
    assert clock.at(5, shop=seen(status=Status.STALLED)) == []


def test_a_rule_is_for_the_groups_it_names() -> None:
    rule = Rule("far", "records", limit=0, groups=("shop-*", "audit"))
    groups = {name: seen(1) for name in ("shop-a", "shop-b", "audit", "Audit", "shop", "x")}
    assert Clock(rule).at(0, **groups) == ["fired far audit", "fired far shop-a", "fired far shop-b"]


def test_a_notice_says_all_of_it() -> None:
    _, [notice] = step({}, (Rule("old", "retention", limit=0.8),), {"shop": seen(retention=0.91)}, 7)
    assert notice.as_dict() == {
        "state": "fired",
        "rule": "old",
        "group": "shop",
        "what": "retention",
        "value": 0.91,
        "limit": 0.8,
        "at_ms": 7,
        "next": "offsetkeeper lag shop says its status, and what to do",
        "text": "fired: old, group shop: an unread record has had 91% of its time in Kafka, above 80%. "
        "Next: offsetkeeper lag shop says its status, and what to do",
    }
    assert isinstance(notice, Notice)


@pytest.mark.parametrize(
    ("rule", "found", "told"),
    [
        (FAR, seen(1101), "1,101 records unread, above 100. Next: offsetkeeper lag 'the shop' says its status, and"),
        (replace(SLOW, for_s=0), seen(seconds=661.712), "the oldest unread record is 11 min 2 s old, above 1 min. "),
        (DEAD, seen(status=Status.STALLED), "status is stalled. Next: stop the run (SIGTERM) and start it again, or"),
        (DEAD, seen(status=Status.STOPPED), "offsetkeeper history 'the shop' shows its last changes"),
    ],
)
def test_a_notice_says_the_limit_and_the_next_step(rule: Rule, found: Measured, told: str) -> None:
    alarms, [fired] = step({}, [rule], {"the shop": found}, 7)
    assert told in fired.as_dict()["text"]
    _, [resolved] = step(alarms, [rule], {"the shop": seen(1)}, 8)
    assert resolved.as_dict()["next"] == ""
    assert "Next" not in resolved.as_dict()["text"]
    if rule is FAR:
        assert resolved.as_dict()["text"] == "resolved: far, group the shop: 1 record unread, not above 100"


def test_a_group_that_cannot_be_read_raises_an_alarm() -> None:
    """All that is asked of it otherwise is not known, and keeps every other alarm as it was."""
    [rule] = read_rules([{"name": "spoilt", "unreadable": True}], "offsetkeeper.toml")
    clock, spoilt = Clock(rule, FAR), BLIND._replace(unreadable="no control record")
    assert clock.at(0, shop=seen(101)) == ["fired far shop"]
    assert clock.at(5, shop=spoilt) == ["fired spoilt shop"]
    assert clock.at(10, shop=spoilt) == []
    assert clock.at(15, shop=BLIND) == []  # whether it could be read is not known while Kafka is away
    assert clock.at(20, shop=spoilt) == []
    assert clock.at(25, shop=seen(101)) == ["resolved spoilt shop"]
    notice = Notice("fired", Key("spoilt", "shop"), rule, 1, "no control record")
    assert notice.as_dict()["text"] == "fired: spoilt, group shop: it cannot be read: no control record"


def test_rules_are_read_from_settings() -> None:
    raw = [
        {"name": "far", "records": 1000, "groups": "shop-*"},
        {"name": "slow", "seconds": 300.5, "for": 60, "groups": ["a", "b"]},
        {"name": "dead", "status": ["stopped", "losing data"]},
    ]
    assert read_rules(raw, "alerts") == (
        Rule("far", "records", 1000.0, groups=("shop-*",)),
        Rule("slow", "seconds", 300.5, groups=("a", "b"), for_s=60.0),
        Rule("dead", "status", statuses=frozenset({Status.STOPPED, Status.LOSING_DATA})),
    )


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("far", "give it a name"),
        ({"records": 1}, "give it a name"),
        ({"name": ""}, "give it a name"),
        ({"name": "x"}, "exactly one of records, seconds, retention, status and unreadable"),
        ({"name": "x", "records": 1, "seconds": 1}, "exactly one of"),
        ({"name": "x", "record": 1}, r"unknown setting: did you mean records\?"),
        ({"name": "x", "records": "1"}, "records must be a number, 0 or more"),
        ({"name": "x", "records": True}, "records must be a number"),
        ({"name": "x", "records": -1}, "records must be a number"),
        ({"name": "x", "records": 10**400}, "records must be a number"),
        ({"name": "x", "seconds": float("nan")}, "seconds must be a number"),
        ({"name": "x", "retention": 80}, "retention is a share of the time below 1, such as 0.8"),
        ({"name": "x", "retention": 1}, "retention is a share of the time below 1"),
        ({"name": "x", "status": "dead"}, "an unknown status. Known statuses: losing data"),
        ({"name": "x", "status": []}, "status must be text"),
        ({"name": "x", "records": 1, "groups": [1]}, "groups must be text"),
    ],
    ids=str,
)
def test_wrong_rules_are_refused(rule: object, told: str) -> None:
    with pytest.raises(SettingsError, match=told) as raised:
        read_rules([{"name": "right", "records": 1}, rule], "alerts")
    assert "alerts, rule 2" in str(raised.value)


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="two rules are named 'x'"):
        read_rules([{"name": "x", "records": 1}, {"name": "x", "seconds": 1}], "alerts")
