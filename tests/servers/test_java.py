"""The options with which JVMs are started."""

from pathlib import Path

import pytest

from offsetkeeper.testing.java import ARCHIVES, RECORDED, class_archive


@pytest.mark.parametrize("there", [False, True])
def test_a_server_in_a_folder_of_its_own_finds_the_archive_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ARCHIVES, "classes")
    monkeypatch.setenv(RECORDED, "1")
    archive = tmp_path / "classes" / "kafka.Kafka.jsa"
    if there:
        archive.parent.mkdir()
        archive.touch()
    [option, _] = class_archive("kafka.Kafka")
    assert option.endswith(f"={archive}")
