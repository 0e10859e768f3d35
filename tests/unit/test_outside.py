"""Files and texts that may be anything: each is read, or refused by an error of ours, at once."""

from __future__ import annotations

import grp
import os
import pwd
import signal
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fixtures.foul import FOUL, SECRET, at_once
from offsetkeeper.checkpoint import LocalFiles
from offsetkeeper.cli import options
from offsetkeeper.cli.main import app
from offsetkeeper.cli.serve import _token
from offsetkeeper.cli.targets import read_csv, write_text
from offsetkeeper.core.outside import (
    LARGEST_STORED,
    TooManyValues,
    UnfitFile,
    check_values,
    load_json,
    read_file,
    read_text,
    unpack,
)
from offsetkeeper.errors import OffsetkeeperError, Refused, SettingsError
from offsetkeeper.kafka import KafkaCluster
from offsetkeeper.kafka.ledger_log import Line, _unpacked
from offsetkeeper.stores import open_store
from offsetkeeper.stores.zookeeper import nodes


def _config(path: Path) -> None:
    os.environ["OFFSETKEEPER_CONFIG"] = str(path)
    options.settings()


def _plan(path: Path) -> None:
    arguments = ["reset", "g", "--store", "memory://x", "--brokers", "127.0.0.1:1", "--plan", str(path)]
    CliRunner().invoke(app, arguments, catch_exceptions=False, standalone_mode=False)


READERS: dict[str, Callable[[Path], object]] = {
    "CSV": read_csv,
    "token": _token,
    "text": read_text,
    "configuration": _config,
    "plan": _plan,
}
PRIVATE = ("token", "configuration")
"""What holds secrets, or settings of clients: no other may write it."""


@pytest.fixture(autouse=True)
def _bounded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OFFSETKEEPER_CONFIG", "")
    signal.alarm(30)  # ends the process: what waits for a FIFO cannot be ended otherwise
    yield
    signal.alarm(0)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_not_a_regular_file_is_refused_at_once(reader: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(SettingsError, match="is not a regular file"):
            READERS[reader](path)


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_not_utf_8_is_refused_with_its_name_and_the_place(reader: str, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"store = '\xe4 s3cret'")
    with pytest.raises(SettingsError, match=r"latin cannot be read: byte 10 is not UTF-8") as caught:
        READERS[reader](tmp_path / "latin")
    assert "s3cret" not in repr(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_not_there_or_has_no_name_is_refused(reader: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"No such file.*Check the path"):
        READERS[reader](tmp_path / "none")


@pytest.mark.parametrize("what", FOUL)
@pytest.mark.parametrize("reader", READERS)
def test_what_lies_in_place_of_a_named_file_is_refused_or_not_quoted(reader: str, what: str, tmp_path: Path) -> None:
    """A link to a file is followed: its path is the user's own, and Kubernetes mounts each secret as a link."""
    (tmp_path / "here").mkdir()
    FOUL[what](tmp_path / "here" / "file")
    with at_once():
        if (reader, what) in {("token", "a link to a secret"), ("token", "a link to a document")} or reader == "text":
            with suppress(SettingsError):
                READERS[reader](tmp_path / "here" / "file")
            return
        with pytest.raises(SettingsError) as raised:
            READERS[reader](tmp_path / "here" / "file")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_settings_and_tokens_that_others_may_write_are_refused(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _be_in_group(monkeypatch, "staff", [])
    (tmp_path / "file").write_text(f"topics = ['{SECRET}']")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").chmod(0o644)
    for reader in PRIVATE:
        READERS[reader](tmp_path / "link")
    (tmp_path / "file").chmod(mode)
    for reader in PRIVATE:
        for name in ("file", "link"):
            with pytest.raises(SettingsError, match=rf"{name} can be written by others \(mode {mode:o}\).*chmod go-w"):
                READERS[reader](tmp_path / name)


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_plan_that_others_may_write_is_refused(tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an operator carries out what somebody else has put into it since it was looked at."""
    _be_in_group(monkeypatch, "staff", [])
    (tmp_path / "file").write_text("{}")
    (tmp_path / "file").chmod(mode)
    with pytest.raises(SettingsError, match=rf"--plan .*file can be written by others \(mode {mode:o}\).*chmod go-w"):
        READERS["plan"](tmp_path / "file")
    (tmp_path / "file").chmod(0o644)
    with pytest.raises(SettingsError, match="file is not a plan"):
        READERS["plan"](tmp_path / "file")


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_of_the_shell_is_refused_with_what_to_do(reader: str) -> None:
    """As `--token-file <(pass show token)`."""
    read, write = os.pipe()
    try:
        with pytest.raises(SettingsError, match=r"a FIFO: a pipe, such as <\(command\), is not read; save its output"):
            READERS[reader](Path(f"/dev/fd/{read}"))
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize(
    ("members", "beside", "refused"),
    [([], [], False), (["me"], [], False), (["somebody"], [], True), ([], ["somebody"], True)],
    ids=["empty", "the owner", "a member", "another user's first group"],
)
def test_a_group_of_the_owner_alone_may_write_settings_and_tokens(
    members: list[str], beside: list[str], *, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each user has such a group, that is how new files are made."""
    file = _of_own_group(tmp_path, monkeypatch, members, beside)
    for reader in PRIVATE:
        with pytest.raises(SettingsError, match="can be written by others") if refused else nullcontext():
            READERS[reader](file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_that_the_group_of_root_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenShift runs each container in that group, under a number that no list of users has."""
    file = _of_own_group(tmp_path, monkeypatch, [], [])
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me", pw_gid=0))
    os.chown(file, 0, 0)
    for reader in PRIVATE:
        with pytest.raises(SettingsError, match=r"can be written by others \(mode 664\)"):
            READERS[reader](file)


def test_a_file_with_a_list_of_rights_that_may_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mode tells only what the list allows at most."""
    file = _of_own_group(tmp_path, monkeypatch, [], [])
    entries = [(1, 6, -1), (2, 6, 65534), (4, 4, -1), (0x10, 6, -1), (0x20, 4, -1)]  # nobody may write, the group not
    os.setxattr(
        file, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *e) for e in entries)
    )
    for reader in PRIVATE:
        with pytest.raises(SettingsError, match=r"can be written by others \(mode 664\).*chmod go-w"):
            READERS[reader](file)
    file.chmod(0o644)  # the list stays, and allows no more than this
    for reader in PRIVATE:
        READERS[reader](file)


def _of_own_group(folder: Path, monkeypatch: pytest.MonkeyPatch, members: list[str], beside: list[str]) -> Path:
    """Return a file that its group may write, which has the name of its owner, and is the first group of others too."""
    file = folder / "file"
    file.write_text("topics = ['a']")
    file.chmod(0o664)
    if os.geteuid() == 0:
        os.chown(file, 4711, 4711)
    number = file.stat().st_gid
    users = [SimpleNamespace(pw_name=name, pw_gid=number) for name in ("me", *beside)]
    monkeypatch.setattr(pwd, "getpwuid", lambda _: users[0])
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    _be_in_group(monkeypatch, "me", members)
    return file


def _be_in_group(monkeypatch: pytest.MonkeyPatch, name: str, members: list[str]) -> None:
    """Give all groups this name and these members, which takes other rights than a test has."""
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name=name, gr_mem=members))


def test_settings_of_a_stranger_in_the_current_folder_are_refused_until_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "offsetkeeper.toml"
    settings.write_text('topics = ["a"]')
    assert options.settings().topics == ("a",)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    if os.getuid() == 0:  # root's own file would do for everybody
        os.chown(settings, 65533, 65533)
    with pytest.raises(SettingsError, match=r"belongs neither to you nor to root.*OFFSETKEEPER_CONFIG"):
        options.settings()
    monkeypatch.setenv("OFFSETKEEPER_CONFIG", str(settings))
    assert options.settings().topics == ("a",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_of_a_stranger_in_the_current_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text('topics = ["a"]')
    (tmp_path / "offsetkeeper.toml").symlink_to("mine")
    assert options.settings().topics == ("a",)
    os.chown(tmp_path / "offsetkeeper.toml", 65533, 65533, follow_symlinks=False)
    with pytest.raises(SettingsError, match="belongs neither to you nor to root"):
        options.settings()


@pytest.mark.parametrize("what", [what for what in FOUL if "secret" not in what])
def test_what_lies_in_place_of_the_settings_in_the_current_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    FOUL[what](tmp_path / "here" / "offsetkeeper.toml")
    with at_once(), pytest.raises(SettingsError):
        options.settings()


def test_a_file_that_tells_no_size_is_read_to_its_limit() -> None:
    """Such as the kernel's own."""
    assert read_file(Path("/proc/self/status"), 10**6)[0].startswith(b"Name:")
    with pytest.raises(UnfitFile, match="has 11 bytes or more"):
        read_file(Path("/proc/self/status"), 10)


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(SettingsError, match="cannot be a path"):
        read_text(Path("a\0b"))


def test_a_plan_is_not_written_into_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SettingsError, match="is not a regular file; nothing was changed"):
        write_text(tmp_path / "fifo", "x")


def test_a_saved_plan_that_is_anything_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text('{"digest": "x", "version": -1e999}')
    arguments = ["reset", "g", "--store", f"sqlite:///{tmp_path}/x.db", "--brokers", "127.0.0.1:1", "--plan"]
    error = CliRunner().invoke(app, [*arguments, str(tmp_path / "plan")]).exception
    assert isinstance(error, OffsetkeeperError)
    assert "is not a plan of a reset" in str(error)
    assert not (tmp_path / "x.db").exists()


@pytest.mark.parametrize(
    "lines", ["a,0,1" + "x" * 140_000, "a,0," + "7" * 5_000, "a,0,\0", "a,-1,5", "a b,0,5", "a,0,-5"]
)
def test_a_line_of_a_csv_that_cannot_be_one_is_told_by_its_number(lines: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"b,0,1\n{lines}\n")
    with pytest.raises(SettingsError, match=r"x\.csv, line 2.*write topic,partition,offset") as caught:
        read_csv(tmp_path / "x.csv")
    assert len(str(caught.value)) < 1_000


def test_a_fifo_among_the_settings_is_refused_before_a_library_waits_for_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for url in (
        f"webhdfs://h/x?ca_bundle={fifo}",
        f"postgresql://h/x?sslrootcert={fifo}",
        f"mysql://h/x?ssl_ca={fifo}",
    ):
        with pytest.raises(SettingsError, match="is not a regular file but a FIFO"):
            open_store(url)
    with pytest.raises(SettingsError, match="is not a regular file but a FIFO"):
        KafkaCluster("h:1", {"security.protocol": "SSL", "ssl.ca.location": str(fifo)})


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket/x?ca_bundle=", "swebhdfs://h/x?ca_bundle=", "postgresql://h/x?sslrootcert="),
        *("mysql://h/x?ssl_ca=", "rediss://h/0?ssl_ca_certs=", "zookeeper://h?tls=true&ca="),
    ],
)
def test_an_empty_path_of_certificates_is_refused(url: str) -> None:
    """As of a variable that is not set. Some libraries, as boto3 was, then check no certificate."""
    with pytest.raises(SettingsError, match="in the store's URL is empty: give the path of a file, or leave it out"):
        open_store(url)


@pytest.mark.parametrize("what", ["a link to a device", "50 GB", "a socket"])
def test_what_a_library_would_read_for_long_is_refused_among_the_settings(tmp_path: Path, what: str) -> None:
    FOUL[what](tmp_path / "file")
    for given in (
        {"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "file")},
        {"sasl.oauthbearer.assertion.file": str(tmp_path / "file")},
    ):
        with pytest.raises(SettingsError, match="give the path of a regular file"), at_once():
            KafkaCluster("h:1", given)
    open_store("postgresql://h/x?passfile=/dev/null").close()


@pytest.mark.parametrize("path", ["/" + "1" * 400, "/a%00b", "/none"])
def test_the_path_of_a_setting_may_be_anything(path: str) -> None:
    open_store(f"mysql://h/x?ssl_ca={path}").close()
    with pytest.raises(SettingsError, match="ca in the store's URL is not a file"):
        open_store(f"zookeeper://h?tls=true&ca={path}")


def test_a_fifo_in_a_checkpoint_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metadata")
    with pytest.raises(Refused, match="metadata is not a regular file"):
        LocalFiles(tmp_path).read("metadata")


@pytest.mark.parametrize(
    "text",
    [
        *("1e999", "-1e999", "NaN", "[Infinity]", "7" * 5_000, "[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101),
        *("[" * 100_000, '"\\ud800"', "\ud800", '"', ""),
    ],
)
def test_json_that_would_break_later_is_refused_when_it_is_read(text: str) -> None:
    for given in (text, text.encode("utf-8", "surrogatepass")):
        with pytest.raises(ValueError):  # noqa: PT011 - of several kinds, for whoever turns them into ours
            load_json(given)


def test_json_that_is_right_is_read() -> None:
    deep = "[" * 100 + "]" * 100
    assert load_json(b'\xef\xbb\xbf{"a": [1, 2.5, "\\ud83d\\ude00"]}') == {"a": [1, 2.5, "\U0001f600"]}
    assert load_json(deep) is not None


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_what_is_packed_comes_out_as_it_was(size: int) -> None:
    assert unpack(zlib.compress(b"x" * size), 100) == b"x" * size


def test_a_few_bytes_do_not_become_a_thousand_times_as_many() -> None:
    with pytest.raises(ValueError, match="more than 100 bytes"):
        unpack(zlib.compress(b"x" * 101), 100)
    packed = zlib.compress(b"x" * 99)
    for damaged in (packed[:-1], b"x" + packed, b""):
        with pytest.raises(zlib.error):
            unpack(damaged, 100)


@pytest.mark.parametrize(
    "unpacked", [nodes.unpacked, lambda data: _unpacked(Line(0, "g", 1, "", "", data))], ids=["zookeeper", "kafka"]
)
def test_a_ledger_that_is_too_large_unpacked_is_damaged(unpacked: Callable[[bytes], bytes]) -> None:
    """A node of 1 MB became 1 GB at each look of `groups` and `serve`."""
    packed = zlib.compress(b"0" * (LARGEST_STORED + 1))
    assert unpacked(packed) == packed


def test_a_long_text_of_few_values_is_read_and_only_one_of_too_many_is_not() -> None:
    for text in ('{"a": ["a long text, with a comma", 1, 2]}', '[1, 2, [3, {"a": 4}], 5]'):
        marks = sum(text.count(mark) for mark in ",[{")
        for given in (text, text.encode()):
            check_values(given, most=marks)
            with pytest.raises(TooManyValues):
                check_values(given, most=marks - 1)
