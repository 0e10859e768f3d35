"""Breaks core and engines by the operators of a library, cosmic-ray, and tells which breakages no fast test notices.

    python mutants/sample.py [--seed 32] [--number 500] [--minutes 30] [--seconds 1] [FILE…] [--only N…]

The operators can break something at many places. The seed puts these in an order, and chooses one breakage of each.
Only what changes the code of a function is tried: no annotation, constant, decorator or class. One process collects the
tests and runs each once, to learn which functions it calls and how long it takes. For a breakage it forks, puts the
broken code into the function, and runs the tests that call it, fastest first, as many as take `--seconds`, up to the
first that fails. No file is written. If files are named (`core/plan.py`), only theirs are drawn. `--only` tries the
breakages of these numbers again, such as those that survived, with more `--seconds` or a new test.

A test that fails anyway would notice everything, and one that checks nothing would miss everything. So there are two
controls of each function, run in the same way as a breakage. With its own code, compiled anew, all its tests must pass:
one that does not is left out, and standard error tells why. With a `raise AssertionError` before its code, one must
fail. And what is noticed must be noticed twice.

For each breakage a line of JSON: what was changed, and what became of it. The last line is their numbers.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import difflib
import gc
import inspect
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"
ROOMS = ("core", "engines")
TESTS = ("tests/unit", "tests/stores/test_memory.py", "tests/stores/test_sqlite.py")
_OPTIONS = (
    *("-q", "-s", "-p", "no:cacheprovider", "-m", "not soak and not wide", "--hypothesis-seed=0"),
    # What this process leaves to the collector of garbage would fail a test of a process that is forked from it.
    *("-p", "no:unraisableexception"),
)
_TEST_S = 1.0
"""Seconds of the processor: a test that takes longer is not fast."""
_BROKEN_S = 3.0
"""As long it may take on broken code."""
_LIMIT_S = 180.0
"""Seconds on the wall: what takes longer never ends."""


class Mutant(NamedTuple):
    """A breakage: the file below the package, the operator, the function, its code broken, and which lines differ."""

    file: str
    operator: str
    function: str
    code: CodeType
    lines: list[str]


class Ran(NamedTuple):
    """What became of tests: which failed, and how; and the one that took too long, after which no other was run."""

    failed: dict[str, str]
    endless: str = ""


class TooLong(BaseException):
    """A test has taken longer than a fast one may; no Exception, so that no test catches it."""


class NeverEnds(Exception):
    """A process was ended, because it took too long."""


class Died(Exception):
    """A process has ended before its work."""


class CannotRun(Exception):
    """What runs the tests has failed, and no test: it tells nothing."""


def draw(seed: int, files: Sequence[str]) -> Iterator[Mutant]:
    """Yield the breakages in the order of the seed."""
    from cosmic_ray import ast as cosmic_ast  # noqa: PLC0415 - only whoever draws needs to install it
    from cosmic_ray import mutating  # noqa: PLC0415 - as above

    operators = dict(_operators())
    places: dict[tuple[str, str, tuple[int, int]], list[tuple[str, int]]] = defaultdict(list)
    for file in files:
        nodes = list(cosmic_ast.ast_nodes(cosmic_ast.get_ast_from_path(_path(file))))
        for name, operator in operators.items():
            starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            for occurrence, start in enumerate(starts):
                places[file, name.rpartition("_")[0] or name, start].append((name, occurrence))
    chance = random.Random(seed)  # noqa: S311 - a sample that can be drawn again
    for file, kind, start in chance.sample(sorted(places), len(places)):
        name, occurrence = chance.choice(places[file, kind, start])
        before = _path(file).read_text("utf-8")
        text = mutating.mutate_code(before, operators[name], occurrence)
        with suppress(SyntaxError):  # some of what the operators make is no Python
            whole, broken = unbroken(file), functions(ast.parse(text), file)
            differ = [each for each in broken.keys() & whole if broken[each] != whole[each]]
            if len(differ) == 1 and text.count("\n") == before.count("\n"):
                lines = difflib.unified_diff(before.splitlines(), text.splitlines(), n=0, lineterm="")
                yield Mutant(file, name.partition("/")[2], differ[0], broken[differ[0]], list(lines)[2:])


def _path(file: str) -> Path:
    return SOURCE / "offsetkeeper" / file


def _operators() -> Iterator[tuple[str, Any]]:
    from cosmic_ray import plugins  # noqa: PLC0415 - only whoever draws needs to install it

    for name in sorted(plugins.operator_names()):
        operator = plugins.get_operator(name)
        if not operator.arguments():
            yield name, operator()


def functions(tree: ast.Module, file: str) -> dict[str, CodeType]:
    """Return the code of each function and method of a file whose name is there once."""
    found: dict[str, list[CodeType]] = defaultdict(list)
    waiting = [compile(tree, str(_path(file)), "exec", dont_inherit=True)]
    while waiting:
        for code in waiting.pop().co_consts:
            if isinstance(code, CodeType) and not code.co_flags & inspect.CO_OPTIMIZED:
                waiting.append(code)  # of a class
            elif isinstance(code, CodeType):
                found[code.co_qualname].append(code)
    return {name: codes[0] for name, codes in found.items() if len(codes) == 1}


@cache
def unbroken(file: str) -> dict[str, CodeType]:
    """Return the code of each function of a file, as it is, compiled in the way that broken code is."""
    return functions(ast.parse(_path(file).read_text("utf-8")), file)


@cache
def beginning(file: str, statement: str) -> dict[str, CodeType]:
    """Return the code of each function of a file, with a statement before it."""
    tree = ast.parse(_path(file).read_text("utf-8"))
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                node.body.insert(0, ast.parse(statement).body[0])
            elif isinstance(node, ast.ClassDef):
                waiting.append(node)
    return functions(ast.fix_missing_locations(tree), file)


def living(files: Sequence[str]) -> dict[tuple[str, str], FunctionType]:
    """Return the functions of these files, as they are in this process."""
    names = {"offsetkeeper." + file.removesuffix(".py").replace("/", "."): file for file in files}
    for name in names:
        import_module(name)
    there = [each for each in gc.get_objects() if type(each) is FunctionType and each.__module__ in names]
    ours = [each for each in there if each.__code__.co_filename == str(_path(names[each.__module__]))]
    return {(names[each.__module__], each.__code__.co_qualname): each for each in ours}


class Controlled:
    """The tests of one function, after both controls.

    `run` runs tests of these names in turn, up to the first that fails where it is asked for that, and returns what
    became of them.
    """

    def __init__(self, function: FunctionType, tests: Sequence[str], run: Callable[[Sequence[str], bool], Ran]) -> None:
        self._function, self._run = function, run
        self.tests = list(tests)
        self.out: dict[str, str] = {}
        self.sees = False

    def control(self, whole: CodeType, raising: CodeType) -> None:
        """Leave out the tests that fail on unbroken code, and learn whether one of the others sees that it raises."""
        while self.tests:
            ran = self._with(whole, up_to_first=False)
            out = ran.failed | ({ran.endless: "it takes too long"} if ran.endless else {})
            if not out:
                break
            self.out |= out
            self.tests = [name for name in self.tests if name not in out]
        self.sees = bool(self.tests) and self.became(raising)[0] == "noticed"

    def became(self, code: CodeType) -> tuple[str, str, str]:
        """Return what became of broken code, the test that has noticed it, and how."""
        noticed: list[Ran] = []
        for _ in range(2):
            try:
                ran = self._with(code, up_to_first=True)
            except NeverEnds:
                return "it never ends", "", ""
            except Died:
                return "its process has died", "", ""
            except CannotRun as error:
                return "it could not be tried", "", str(error)
            if ran.endless and not ran.failed:
                return "it never ends", ran.endless, ""
            if ran.failed:
                noticed.append(ran)
            elif not noticed:
                return "survived", "", ""
        name, text = next(iter(noticed[0].failed.items()))
        return ("noticed" if len(noticed) > 1 else "noticed once, and once not"), name, text

    def _with(self, code: CodeType, *, up_to_first: bool) -> Ran:
        def run() -> object:
            self._function.__code__ = code
            return self._run(self.tests, up_to_first)

        return Ran(*apart(run, _LIMIT_S))


class Sample:
    """Takes the place of pytest's loop over the tests."""

    def __init__(self, asked: argparse.Namespace, files: Sequence[str]) -> None:
        self.asked, self.files = asked, files
        self.failed: dict[str, str] = {}
        self.skipped: set[str] = set()
        self.overdue = False
        self.controlled: dict[tuple[str, str], Controlled] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Learn what the tests call, then break one function after the other."""
        self.items = {item.nodeid: item for item in session.items}
        self.functions = living(self.files)
        self.seconds, self.calls = self._learned()
        print(f"{len(self.seconds)} of {len(self.items)} tests pass, and are fast", file=sys.stderr, flush=True)
        numbers = Counter[str]()
        ends = time.monotonic() + self.asked.minutes * 60
        for number, mutant in enumerate(itertools.islice(draw(self.asked.seed, self.files), self.asked.number), 1):
            if time.monotonic() > ends:
                break
            if self.asked.only and number not in self.asked.only:
                continue
            became, by, how = self._judge(mutant)
            numbers[became] += 1
            told = {"number": number, "became": became, "by": by, "how": how, "file": mutant.file}
            told |= {"function": mutant.function, "operator": mutant.operator, "lines": mutant.lines}
            print(json.dumps(told, ensure_ascii=False), flush=True)
        control = {
            "functions": len(self.controlled),
            "left out": sum(len(each.out) for each in self.controlled.values()),
            "no test sees that it raises": sorted(
                "::".join(key) for key, each in self.controlled.items() if each.tests and not each.sees
            ),
        }
        print(json.dumps({"seed": self.asked.seed, "tried": numbers.total(), **numbers, "control": control}))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that is skipped or fails."""
        if report.failed:
            self.failed.setdefault(report.nodeid, _last(str(report.longrepr)))
        elif report.skipped:
            self.skipped.add(report.nodeid)

    def _tests(self, key: tuple[str, str]) -> list[str]:
        names = sorted(self.calls.get("::".join(key), []), key=self.seconds.__getitem__)
        total = itertools.accumulate(self.seconds[name] for name in names)
        return [name for name, spent in zip(names, total, strict=True) if spent <= self.asked.seconds]

    def _judge(self, mutant: Mutant) -> tuple[str, str, str]:
        """Return what became of a breakage, the test that has noticed it, and how."""
        key = (mutant.file, mutant.function)
        if not self._tests(key):
            return "no fast test calls it", "", ""
        whole, raising = unbroken(mutant.file), beginning(mutant.file, "raise AssertionError('broken on purpose')")
        if key not in self.controlled:
            self.controlled[key] = found = Controlled(self.functions[key], self._tests(key), self._run_names)
            try:
                found.control(whole[mutant.function], raising[mutant.function])
            except (NeverEnds, Died, CannotRun) as error:
                found.out |= dict.fromkeys(found.tests, f"{type(error).__name__}: {error}")
                found.tests = []
            for name, why in found.out.items():
                print(f"{'::'.join(key)} without {name}: {why}", file=sys.stderr, flush=True)
        found = self.controlled[key]
        if not found.tests:
            return "no test passes on unbroken code", "", ""
        return found.became(mutant.code) if found.sees else ("no test sees that it raises", "", "")

    def _run_names(self, names: Sequence[str], up_to_first: bool) -> Ran:  # noqa: FBT001 - see `Controlled`
        for name, spent in self._run([self.items[name] for name in names], _BROKEN_S):
            if spent is None:
                self.failed.pop(name, None)
                return Ran(self.failed, name)
            if up_to_first and self.failed:
                break
        return Ran(self.failed)

    def _run(self, items: Sequence[pytest.Item], limit_s: float) -> Iterator[tuple[str, float | None]]:
        """Run tests, and yield the name of each, with its seconds, or None if it takes too long."""
        for item, following in itertools.zip_longest(items, items[1:]):
            before, self.overdue = time.process_time(), False
            signal.setitimer(signal.ITIMER_PROF, limit_s)
            with suppress(TooLong):  # pytest takes it for a failure, unless it comes between two steps of a test
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            signal.setitimer(signal.ITIMER_PROF, 0)
            yield item.nodeid, None if self.overdue else time.process_time() - before

    def too_long(self, *_: object) -> None:
        """End the test that has taken too long."""
        self.overdue = True
        raise TooLong

    def _learned(self) -> tuple[dict[str, float], dict[str, list[str]]]:
        seconds, calls = apart(self._learn, 3600)
        return seconds, calls

    def _learn(self) -> object:
        """Run each test, and return the seconds of those that pass, and of each function the tests that call it.

        Until its first call in a test, a function has code that notes the call.
        """
        whole = {key: function.__code__ for key, function in self.functions.items()}
        noting = {(file, name): code for file in self.files for name, code in beginning(file, "__called__()").items()}
        called: set[tuple[str, str]] = set()

        def note() -> None:
            code = sys._getframe(1).f_code  # noqa: SLF001 - there is no other way to ask
            key = (str(Path(code.co_filename).relative_to(SOURCE / "offsetkeeper")), code.co_qualname)
            called.add(key)
            self.functions[key].__code__ = whole[key]

        builtins.__called__ = note  # type: ignore[attr-defined]
        known = self.functions.keys() & noting.keys()
        for key in known:
            self.functions[key].__code__ = noting[key]
        seconds: dict[str, float] = {}
        calls: dict[str, list[str]] = defaultdict(list)
        for name, spent in self._run(list(self.items.values()), _TEST_S):
            passes = spent is not None and name not in self.failed and name not in self.skipped
            if passes:
                seconds[name] = spent or 0.0
            for key in called:
                calls["::".join(key)] += [name] * passes
                self.functions[key].__code__ = noting[key]
            called.clear()
        return [seconds, calls]


def _last(text: str) -> str:
    """Return the first line of a failure that says what was wrong."""
    lines = [line for line in text.splitlines() if line.startswith("E ")] or text.splitlines() or [""]
    return lines[0][:300]


def apart(work: Callable[[], object], limit_s: float) -> Any:
    """Return what a process of its own works out, as JSON has it.

    Raises:
        NeverEnds: it has taken longer on the wall than `limit_s`.
        Died: it has ended before.
        CannotRun: the work has raised.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        gc.freeze()  # what is garbage here is not the other's to collect, in the midst of a test
        child = os.fork()
        if not child:
            _work(work, Path(folder))
        gc.unfreeze()
        ends = time.monotonic() + limit_s
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > ends:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise NeverEnds
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests have left running
        answer = Path(folder) / "answer"
        if not answer.exists():
            raise Died
        found, error = json.loads(answer.read_text("utf-8"))
    if error:
        raise CannotRun(error)
    return found


def _work(work: Callable[[], object], folder: Path) -> None:
    """Do the work, write the answer, and end."""
    try:
        os.setsid()
        folder.chmod(0o755)  # some tests are a user who may do little
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
        told = os.open(folder / "told", os.O_WRONLY | os.O_CREAT)
        os.dup2(told, 1)
        os.dup2(told, 2)
        try:
            found: tuple[object, str] = (work(), "")
        except Exception:  # noqa: BLE001 - it is the other process that tells
            found = (None, traceback.format_exc())
        half = folder / "half"
        half.write_text(json.dumps(found), "utf-8")
        half.rename(folder / "answer")
    finally:
        os._exit(0)


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=32)
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seconds", type=float, default=1, help="of the tests that call a function, so many")
    parser.add_argument("--only", type=int, nargs="+", help="try only those of the sample that have these numbers")
    parser.add_argument("files", nargs="*", help="such as core/plan.py; else all of core and engines")
    asked = parser.parse_args(arguments)
    try:
        import_module("cosmic_ray")
    except ImportError:
        parser.error("the sample is made by cosmic-ray: install it by pip install cosmic-ray==8.7.0")
    os.chdir(ROOT)
    sys.path[:0] = [str(SOURCE), str(ROOT / "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    package = SOURCE / "offsetkeeper"
    every = [str(path.relative_to(package)) for room in ROOMS for path in sorted((package / room).glob("*.py"))]
    sample = Sample(asked, asked.files or every)
    signal.signal(signal.SIGPROF, sample.too_long)
    return int(pytest.main([*_OPTIONS, *TESTS], [sample]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
