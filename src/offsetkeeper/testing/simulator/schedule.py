"""Actors that take turns: one process, no threads, no time. Every step is a choice from a list that can be replayed.

An actor is code under test, such as a run of a pipeline. Each of its questions to a store, to Kafka or to an output is
a `point`: there it stops, and the schedule chooses who goes on, and whether the answer is an error. So a whole history
is one list of numbers, and the same numbers give the same history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from greenlet import greenlet

from offsetkeeper.core import environment

GO = "goes on"
KILLED = "is killed"
_START = "start"


class Halt(BaseException):
    """Ends an actor at a point, as a kill does. It is no `Exception`, so that no code under test handles it."""


class Violation(AssertionError):
    """A promise was broken. The message says which, and by what."""


class Option(NamedTuple):
    """One thing that can happen next.

    Attributes:
        who: the actor; or another happening, such as a late request or an event.
        what: what the actor is about to do.
        mode: how it goes: `GO`, `KILLED`, or one of the faults of the point.
        preempts: whether another actor could have gone on.
    """

    who: Actor | Flight | Event
    what: str
    mode: str = GO
    preempts: bool = False

    def __str__(self) -> str:
        return f"{self.who.name}: {self.what}" + ("" if self.mode == GO else f": {self.mode}")


class Flight(NamedTuple):
    """A request whose sender got no answer. It may land at any later step, or never."""

    name: str
    land: Callable[[], object]
    key: int


class Event(NamedTuple):
    """What happens to the world once, at any step: records arrive, retention deletes, a backup is restored."""

    name: str
    happen: Callable[[], None]


@dataclass(slots=True, eq=False)
class Actor:
    """One process.

    Attributes:
        name: for the path.
        body: its function; the actor ends when it returns or raises.
        owner_id: of the ledger, once it has acquired the group.
        fenced: whether an answer of the store has shown it that it does not own the group any more.
        raised: what ended it, if an error did.
        returned: the batches that a write of this actor has put into an output, by id and output.
        mixed: whether Spark has computed a part of what it stages now again, with other rows.
        seen: a digest of all answers it got; code under test is deterministic, so this tells its whole state.
        ended: whether it is through, or killed.
    """

    name: str
    body: Callable[[], object]
    owner_id: str = ""
    fenced: bool = False
    raised: Exception | None = None
    returned: set[tuple[str, str]] = field(default_factory=set)
    mixed: bool = False
    seen: int = 0
    ended: bool = False
    dead: bool = False
    what: str = _START
    faults: tuple[str, ...] = ()
    seconds: float = 0.0
    tokens: int = 0
    greenlet: Any = None

    @property
    def begun(self) -> bool:
        """Whether it has taken a step."""
        return self.what != _START


class Picker(Protocol):
    """Chooses at each step."""

    def __call__(self, options: list[Option], /) -> int:
        """Return the number of the option that is taken; 0 is what happens where nothing special does."""
        ...


@dataclass(slots=True)
class Budget:
    """How much may go wrong in one history."""

    preemptions: int
    faults: int


@dataclass(eq=False)
class Schedule(environment.Environment):
    """Runs actors step by step. It is their clock and their source of random ids, too.

    Attributes:
        pick: chooses at each step.
        budget: what is left of it.
        actors: all of them, in the order in which they are chosen by default.
        flights: requests under way.
        events: that have not happened yet.
        path: the options taken.
        current: the actor that has the turn.
        undisturbed: whether no choices are offered any more: each actor simply goes on.
    """

    pick: Picker
    budget: Budget
    actors: list[Actor] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    path: list[Option] = field(default_factory=list)
    current: Actor | None = None
    undisturbed: bool = False
    violation: Violation | None = None

    def add(self, name: str, body: Callable[[], object]) -> Actor:
        """Add an actor, which begins when it is chosen."""
        actor = Actor(name, body)
        actor.greenlet = greenlet(lambda _: self._live(actor))
        self.actors.append(actor)
        return actor

    def point(self, what: str, faults: tuple[str, ...] = ()) -> str:
        """Stop the current actor before it does `what`; return how that goes: `GO` or one of `faults`.

        Raises:
            Halt: the actor was killed.
        """
        actor = self.current
        if actor is None:
            return GO  # the caller is not an actor: it is a check after the history
        if actor.dead:
            raise Halt
        actor.what, actor.faults = what, faults
        mode: str = actor.greenlet.parent.switch()
        if actor.dead:
            raise Halt
        return mode

    def saw(self, answer: object) -> None:
        """Note what the current actor has learned at a point: any value that can be hashed."""
        if self.current is not None:
            self.current.seen = hash((self.current.seen, self.current.what, answer))

    def violate(self, promise: str) -> None:
        """End the history with a broken promise.

        Raises:
            Halt: where an actor broke it.
            Violation: where none did.
        """
        self.violation = self.violation or Violation(promise)
        if self.current is None:
            raise self.violation
        self.current.dead = True
        raise Halt

    def run(self) -> None:
        """Let things happen until nothing can.

        Raises:
            Violation: a promise was broken.
        """
        with environment.using(self):
            while options := self._options():
                number = 0 if len(options) == 1 else self.pick(options)
                self._take(options[number])

    def close(self) -> None:
        """End all actors."""
        for actor in self.actors:
            self.current, actor.dead = actor, True
            if actor.greenlet:  # begun, and not at its end
                actor.greenlet.throw(Halt)

    def digest(self) -> int:
        """Return a digest of the actors' knowledge, of requests under way, and of possible later events."""
        actors = tuple((a.seen, a.what, a.ended) for a in self.actors)
        current = None if self.current is None or self.current.ended else self.current.name
        flights = tuple(sorted(flight.key for flight in self.flights))
        return hash((actors, current, flights, tuple(event.name for event in self.events)))

    def now_ms(self) -> int:
        """See `Environment.now_ms`."""
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        """See `Environment.monotonic`. Time passes for an actor only when it waits."""
        return 0.0 if self.current is None else self.current.seconds

    def wait(self, seconds: float) -> None:
        """See `Environment.wait`."""
        if self.current is not None:
            self.current.seconds += seconds

    def token(self, size: int = 8) -> str:
        """See `Environment.token`: the actor's name and a number, the same in each order of the actors."""
        actor = self.current
        if actor is None:
            return "0" * (2 * size)
        actor.tokens += 1
        return f"{actor.name}x{actor.tokens}".replace(" ", "")  # run1, token 23, is not run12, token 3

    def chance(self) -> float:
        """See `Environment.chance`."""
        return 0.0

    def _live(self, actor: Actor) -> None:
        try:
            actor.body()
        except Halt:
            pass
        except Exception as error:  # noqa: BLE001 - how it ended is judged by the oracles
            actor.raised = error
            actor.seen = hash((actor.seen, type(error).__name__))
        actor.ended = True

    def _options(self) -> list[Option]:
        """Return the possible next steps: the normal step first, the kill of all actors last."""
        if self.violation is not None:
            raise self.violation
        ready = [actor for actor in self.actors if not actor.ended]
        current = self.current if self.current in ready else None
        if self.undisturbed:
            return [Option(actor, actor.what) for actor in ready[:1]]
        options = []
        for actor in ready if current is None else [current, *(each for each in ready if each is not current)]:
            preempts = current is not None and actor is not current
            if preempts and not self.budget.preemptions:
                continue
            options.append(Option(actor, actor.what, GO, preempts))
            if self.budget.faults:
                options += [Option(actor, actor.what, fault, preempts) for fault in actor.faults]
                if not preempts and actor.begun:
                    options.append(Option(actor, actor.what, KILLED))
        options += [Option(flight, "lands late") for flight in self.flights]
        if ready and self.budget.faults:
            options += [Option(event, "happens") for event in self.events]
        if ready:
            options.append(Option(_ALL, "are killed"))
        return options if ready or not self.flights else [Option(_NOTHING, "more happens"), *options]

    def _take(self, option: Option) -> None:
        self.path.append(option)
        who = option.who
        self.budget.preemptions -= option.preempts
        if isinstance(who, Actor):
            self.budget.faults -= option.mode != GO
            self._resume(who, option.mode)
        elif isinstance(who, Flight):
            self.flights.remove(who)
            with self._nobody():
                who.land()
        elif who is _NOTHING:
            self.flights.clear()
        elif who is _ALL:
            for actor in self.actors:
                actor.dead = actor.ended = True
        else:
            self.budget.faults -= 1
            self.events.remove(who)
            with self._nobody():
                who.happen()

    def _resume(self, actor: Actor, mode: str) -> None:
        self.current = actor
        if mode == KILLED:
            actor.dead = actor.ended = True
            return
        actor.greenlet.switch(mode)

    @contextmanager
    def _nobody(self) -> Iterator[None]:
        current, self.current = self.current, None
        try:
            yield
        finally:
            self.current = current


_NOTHING = Event("nothing", lambda: None)
_ALL = Event("all actors", lambda: None)
