"""What is in a repository: versions that are whole, names that are plain, nothing outside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.artifact.load import LoadedArtifact
from recsys.errors import ArtifactError
from serve.errors import ModelNotFoundError, RequestError
from serve.models.repository import ModelSource, Repository, SingleArtifact, fingerprint
from tests.support.serve.repositories import add_version


@pytest.fixture
def root(tmp_path: Path, artifact_path: Path) -> Path:
    """Two models."""
    root = tmp_path / "models"
    for version in ("1", "2", "10"):
        add_version(root, "small", version, artifact_path)
    add_version(root, "other-1.0_x", "3", artifact_path)
    return root


@pytest.fixture
def repository(root: Path) -> Repository:
    return Repository(root)


def test_models_are_sorted_and_versions_ascend_by_number(repository: Repository, root: Path) -> None:
    assert repository.names() == ["other-1.0_x", "small"]
    assert repository.versions("small") == ["1", "2", "10"]
    assert repository.path("small", "10") == root / "small" / "10"
    assert repository.versions("nothing") == []


def test_only_the_models_asked_for_are_there(root: Path) -> None:
    assert Repository(root, ["small", "missing"]).names() == ["small"]


def test_new_models_and_versions_are_seen(repository: Repository, root: Path, artifact_path: Path) -> None:
    repository.names()
    add_version(root, "small", "11", artifact_path)
    add_version(root, "third", "1", artifact_path)
    assert repository.versions("small")[-1] == "11"
    assert repository.names()[-1] == "third"


def test_a_single_file_is_a_version_too(repository: Repository, root: Path) -> None:
    (root / "small" / "12.pt").write_bytes(b"")
    assert repository.versions("small")[-1] == "12"
    assert repository.path("small", "12") == root / "small" / "12.pt"
    (root / "small" / "10.pt").write_bytes(b"")
    assert repository.versions("small") == ["1", "2", "10", "12"]
    assert repository.path("small", "10") == root / "small" / "10"


def test_a_version_without_its_manifest_is_not_there_yet(repository: Repository, root: Path) -> None:
    half = root / "small" / "11"
    half.mkdir()
    (half / "rows.bin").write_bytes(b"rows")
    assert "11" not in repository.versions("small")
    with pytest.raises(ModelNotFoundError):
        repository.path("small", "11")
    (half / "manifest.json").write_text("{}")
    assert "11" in repository.versions("small")


@pytest.mark.parametrize("name", ["0", "01", "-1", "1.5", "latest", "١", "9" * 19, "1 "])
def test_what_is_no_version_is_passed_over_and_said_once(
    repository: Repository, root: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = root / "small" / name
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    for _ in range(2):
        assert repository.versions("small") == ["1", "2", "10"]
    assert sum("versions are whole numbers from 1" in record.message for record in caplog.records) == 1
    with pytest.raises(ModelNotFoundError):
        repository.path("small", name)


@pytest.mark.parametrize("name", ["with space", "ümlaut", "-dash", "x" * 129, "semi;colon"])
def test_what_is_no_models_name_is_passed_over_and_said(
    repository: Repository, root: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (root / name).mkdir()
    assert name not in repository.names()
    assert "is passed over" in caplog.text
    assert repository.versions(name) == []


def test_hidden_folders_and_files_are_no_models(
    repository: Repository, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / ".scratch").mkdir()
    (root / "README").write_text("")
    (root / "small" / ".10.partial").mkdir()
    (root / "small" / "deltas").mkdir()
    assert repository.names() == ["other-1.0_x", "small"]
    assert repository.versions("small") == ["1", "2", "10"]
    assert caplog.text == ""


def test_links_out_of_the_root_are_refused_and_links_within_are_not(
    repository: Repository,
    root: Path,
    tmp_path: Path,
    artifact_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    outside = add_version(tmp_path / "elsewhere", "secret", "1", artifact_path)
    (root / "stolen").symlink_to(outside.parent)
    (root / "small" / "11").symlink_to(outside)
    (root / "small" / "12").symlink_to(root / "small" / "2")
    assert repository.names() == ["other-1.0_x", "small"]
    assert repository.versions("stolen") == []
    assert repository.versions("small") == ["1", "2", "10", "12"]
    with pytest.raises(ModelNotFoundError):
        repository.path("small", "11")
    assert "small/11 is passed over: it leads out of the repository" in caplog.text


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _memory(path: Path) -> None:
    path.symlink_to("/proc/self/mem")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("odd", [_loop, _memory, _device], ids=["a loop", "memory", "a device"])
def test_an_odd_entry_is_passed_over_and_said_once(
    repository: Repository,
    root: Path,
    odd: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd(root / "odd")
    odd(root / "small" / "11")
    odd(root / "small" / "12.pt")
    (root / "small" / "deltas").mkdir()
    odd(root / "small" / "deltas" / "a.delta")
    for _ in range(2):
        assert repository.names() == ["other-1.0_x", "small"]
        assert repository.versions("small") == ["1", "2", "10"]
        assert repository.versions("odd") == []
    for version in ("11", "12"):
        with pytest.raises(ModelNotFoundError):
            repository.path("small", version)
    with pytest.raises(ModelNotFoundError):
        repository.delta_path("small", "a.delta")
    said = [record.message for record in caplog.records]
    assert len(said) == len(set(said))
    if odd is _loop:
        named = {"odd", "small/11", "small/12.pt", "small/deltas/a.delta"}
        assert {text.split(" ")[1] for text in said} == named


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert Repository(tmp_path / "link").versions("small") == ["1", "2", "10"]


def test_a_root_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Repository(tmp_path / "nothing").names()


BAD_NAMES = ["", ".", "..", "../1", "1/..", "/etc/passwd", "a/b", "a\\b", "a\0b", ".hidden", "x" * 129]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_from_outside_lead_nowhere(repository: Repository, name: str) -> None:
    assert repository.versions(name) == []
    with pytest.raises(ModelNotFoundError):
        repository.path(name, "1")
    with pytest.raises(ModelNotFoundError):
        repository.path("small", name)
    with pytest.raises(ModelNotFoundError):
        repository.delta_path(name, "a.delta")
    with pytest.raises(RequestError, match=r"delta: got .*, expected the name of a file, without folders"):
        repository.delta_path("small", name)


@given(name=st.text(max_size=40), version=st.text(max_size=20), file_name=st.text(max_size=40))
def test_no_name_leads_out(name: str, version: str, file_name: str) -> None:
    repository = Repository(Path("nowhere"))
    assert repository.versions(name) == []
    with pytest.raises(ModelNotFoundError):
        repository.path(name, version)
    with pytest.raises(RequestError):
        repository.delta_path("small", file_name)


def deltas_of(source: ModelSource, name: str, folder: Path, outside: Path) -> None:
    """What holds for deltas of every source."""
    folder.mkdir(parents=True)
    (folder / "1.delta").write_bytes(b"")
    (folder / "out").symlink_to(outside)
    (folder / "within").mkdir()
    assert source.delta_path(name, "1.delta") == folder / "1.delta"
    for missing in ("2.delta", "out", "within"):
        with pytest.raises(ModelNotFoundError, match=f"delta: got '{missing}', expected a file"):
            source.delta_path(name, missing)
    with pytest.raises(RequestError):
        source.delta_path(name, "../deltas/1.delta")


def test_deltas_of_a_repository(repository: Repository, root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("")
    deltas_of(repository, "small", root / "small" / "deltas", secret)


def test_deltas_of_a_single_artifact(artifact_path: Path, tmp_path: Path) -> None:
    path = add_version(tmp_path, "single", "1", artifact_path)
    secret = tmp_path / "secret"
    secret.write_text("")
    source = SingleArtifact(path)
    deltas_of(source, "small", tmp_path / "single" / "1.deltas", secret)
    with pytest.raises(ModelNotFoundError, match="model: got 'other', expected 'small'"):
        source.delta_path("other", "1.delta")


def test_a_single_artifact_is_named_by_its_manifest(artifact_path: Path, model: LoadedArtifact) -> None:
    source = SingleArtifact(artifact_path)
    assert source.names() == ["small"]
    assert source.versions("small") == [source.version] == ["1"]
    assert source.path("small", "1") == artifact_path
    assert source.versions("other") == []
    for version in ("2", model.digest):
        with pytest.raises(ModelNotFoundError, match="expected '1' of 'small'"):
            source.path("small", version)


def test_what_is_no_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError):
        SingleArtifact(tmp_path)
    _loop(tmp_path / "loop")
    for odd in (tmp_path / "loop", Path("/dev/zero"), Path("/proc/self/mem")):
        with pytest.raises(ArtifactError, match=f"artifact: got '{odd.name}'"):
            SingleArtifact(odd)


def test_fingerprints_change_with_the_files(tmp_path: Path, artifact_path: Path) -> None:
    path = add_version(tmp_path, "small", "1", artifact_path)
    before = fingerprint(path)
    assert fingerprint(path) == before
    rows = path / "rows.bin"
    data = rows.read_bytes()
    rows.unlink()
    rows.write_bytes(data)
    assert fingerprint(path) != before
    assert fingerprint(path / "nothing") == ()
    assert fingerprint(rows) != ()
