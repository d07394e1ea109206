"""The store in a folder: what is its own, and what is somebody else's."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from damage import table

import headrace.wirehead._stores.local_store as local_stores
from headrace.wirehead import MongoheadDataset
from headrace.wirehead._command_line.commands import main
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.local_store import LocalStore, _file_system
from headrace.wirehead.config import Config
from headrace.wirehead.errors import CacheGoneError, StoreError


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    return {"DBNAME": "brains", "DIRECTORY": str(tmp_path), "SWAP_CAP": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the cache."""
    return tmp_path / "brains.wirehead"


def fill(cache: Cache, value: int = 0) -> None:
    writer, manager = Writer(cache), GenerationManager(cache)
    for i in range(2):
        assert writer.put((value, i)) is not None
    assert manager.step() is not None
    writer.close()
    manager.close()


def config_file(tmp_path: Path, keys: dict[str, Any]) -> str:
    path = tmp_path / "config.json"
    path.write_text(str(keys).replace("'", '"'))
    return str(path)


def test_clean_removes_the_cache_and_nothing_else(
    tmp_path: Path, keys: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "data.nii.gz").write_text("years of work")
    fill(Cache(keys))
    config = config_file(tmp_path, keys)
    assert main(["clean", "--config", config, "--dry-run"]) == 0
    assert f"would remove the cache brains at {folder} (generations: 1)" in capsys.readouterr().out
    assert Cache(keys).current() == 1
    assert main(["clean", "--config", config]) == 0
    assert "removed\n" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == ["config.json", "thesis"]
    assert (tmp_path / "thesis" / "data.nii.gz").exists()
    for options in [], ["--dry-run"]:
        assert main(["clean", "--config", config, *options]) == 0
        assert capsys.readouterr().out == f"there is no cache brains at {folder}\n"


def test_clean_leaves_files_in_the_folder_that_are_not_the_caches(
    tmp_path: Path, keys: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(Cache(keys))
    (folder / "notes.txt").write_text("mine")
    (folder / "000000000007.notes").mkdir()
    assert main(["clean", "--config", config_file(tmp_path, keys)]) == 0
    assert f"kept, because it does not belong to the cache: {folder / 'notes.txt'}" in capsys.readouterr().out
    left = [name for name in os.listdir(folder) if not name.startswith("headrace")]
    assert sorted(left) == ["000000000007.notes", "notes.txt"]
    fill(Cache(keys))  # it is a cache still


def test_a_folder_that_is_no_cache_is_neither_used_nor_cleaned(
    tmp_path: Path, keys: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.mkdir()
    (folder / "settings").mkdir()
    (folder / "settings" / "mine").write_text("mine")
    with pytest.raises(StoreError, match=f"{folder} is not a cache of headrace.wirehead"):
        Cache(keys)
    assert main(["clean", "--force", "--config", config_file(tmp_path, keys)]) == 1
    assert "is not a cache of headrace.wirehead" in capsys.readouterr().err
    assert (folder / "settings" / "mine").read_text() == "mine"
    assert sorted(os.listdir(folder)) == ["settings"]


def test_what_a_deletion_beside_living_processes_has_left_is_no_obstacle(
    tmp_path: Path, keys: dict[str, Any], folder: Path
) -> None:
    """`rm -r` finds the folder full again when it wants to remove it, and ends."""
    with contextlib.closing(Cache(keys)) as old:
        fill(old)
        (left,) = folder.glob("*.samples.*")
        for path in [*folder.iterdir()]:
            if path != left:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        with contextlib.closing(Cache(keys, create=False)) as watching:
            assert watching.incarnation is None
        with contextlib.closing(Cache(keys)) as new:
            assert new.incarnation not in (None, old.incarnation)
            fill(new)
            assert not left.exists()  # a manager has removed it
            for path in [*folder.iterdir()]:
                if not path.name.startswith(f"{new.incarnation}."):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            assert main(["clean", "--config", config_file(tmp_path, keys)]) == 0
            assert not folder.exists()


def test_a_cache_that_was_deleted_in_part_is_not_continued(tmp_path: Path, keys: dict[str, Any], folder: Path) -> None:
    with contextlib.closing(Cache(keys)) as cache:
        fill(cache)
    (folder / "headrace-wirehead-cache").unlink()
    with pytest.raises(StoreError, match=f"{folder} is a cache that was deleted in part: first `python -m headrace"):
        Cache(keys)
    assert main(["clean", "--config", config_file(tmp_path, keys)]) == 0
    assert not folder.exists()
    with contextlib.closing(Cache(keys)) as cache:
        fill(cache)


def test_a_folder_that_is_being_deleted_gets_no_new_tables(keys: dict[str, Any], folder: Path) -> None:
    with contextlib.closing(Cache(keys)) as cache:
        fill(cache)
        for path in [*folder.iterdir()]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with pytest.raises(CacheGoneError):
            cache.store.insert("swaps", "000000000009", {})
        assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("x"), "is not a folder"),
        (lambda path: path.symlink_to("/tmp"), "is a symbolic link"),
        (lambda path: path.symlink_to("/nowhere"), "is a symbolic link"),
    ],
)
def test_what_is_no_folder_is_refused(keys: dict[str, Any], folder: Path, make: Any, message: str) -> None:
    make(folder)
    with pytest.raises(StoreError, match=message):
        Cache(keys)


@pytest.mark.parametrize("command", ["status", "clean"])
def test_a_directory_below_a_file_is_named(
    command: str, tmp_path: Path, keys: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    path = config_file(tmp_path, {**keys, "DIRECTORY": str(tmp_path / "file")})
    assert main([command, "--config", path]) == 1
    message = f"{tmp_path}/file/brains.wirehead cannot be created: Not a directory: use another DIRECTORY"
    assert message in capsys.readouterr().err


def test_names_that_are_not_ascii_where_the_encoding_is(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys["DBNAME"] = "größe"
    fill(Cache(keys))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys))

    def run(command: str, **environment: str) -> str:
        line = [sys.executable, "-m", "headrace.wirehead", command, "--config", str(path)]
        return subprocess.run(
            line, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ).stdout

    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for command in ("status", "clean"):
        (line,) = run(command, **ascii_only).splitlines()
        assert "this process cannot write in its encoding, ascii: set PYTHONUTF8=1" in line
    assert run("status", PYTHONIOENCODING="ascii").startswith(r"gr\xf6\xdfe at ")
    assert r"removes the cache gr\xf6\xdfe at " in run("clean", PYTHONIOENCODING="ascii")


def test_the_parent_of_the_folder_may_be_a_symbolic_link(tmp_path: Path, keys: dict[str, Any], folder: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    fill(Cache({**keys, "DIRECTORY": str(tmp_path / "link")}))
    assert Cache(keys, create=False).current() == 1


def test_an_empty_folder_becomes_a_cache(keys: dict[str, Any], folder: Path) -> None:
    folder.mkdir()
    fill(Cache(keys))
    assert Cache(keys, create=False).current() == 1


def test_who_has_not_heard_of_a_clean_does_not_spoil_the_next_cache(
    keys: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = Cache(keys)
    assert stale.store.clean() == []
    make, calls = os.mkdir, itertools.count()

    def mkdir(path: Any, *arguments: Any) -> None:
        make(path, *arguments)
        if next(calls) == 0:  # the folder, or what becomes it
            with contextlib.suppress(StoreError):
                stale.store.insert("rounds", "a", {})

    monkeypatch.setattr(os, "mkdir", mkdir)
    with contextlib.closing(Cache(keys)) as cache:
        assert cache.incarnation != stale.incarnation
        fill(cache)
        assert cache.current() == 1
    assert next(calls) > 1


def test_a_cache_that_is_made_during_a_clean_stays(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    old, made = Cache(keys), []
    rmtree = local_stores.shutil.rmtree

    def remove(path: Path, **options: Any) -> None:
        rmtree(path, **options)
        if not made:
            assert path.name == "settings"
            made.append(Cache(keys))
            fill(made[0])

    monkeypatch.setattr(local_stores.shutil, "rmtree", remove)
    assert old.store.clean() == []
    made[0].check_is_there()
    assert made[0].current() == 1
    with pytest.raises(CacheGoneError):
        old.check_is_there()


@pytest.mark.parametrize("late", ["0123456789abcdef.leases", "notes"])
def test_what_comes_into_a_folder_that_clean_has_renamed(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """By a process that had opened it before, while another one creates the next cache."""
    fill(Cache(keys))
    made: list[Cache] = []
    unlink = os.unlink

    def come(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if not made and Path(path).name == "headrace-wirehead-cache":
            (Path(path).parent / late).mkdir()
            made.append(Cache(keys))
            fill(made[0])

    monkeypatch.setattr(local_stores.os, "unlink", come)
    left = Cache(keys).store.clean()
    made[0].check_is_there()
    assert made[0].current() == 1
    if late == "notes":
        (kept,) = left
        assert Path(kept).is_dir()
        assert made[0].store.clean() == left  # and the next one does not forget it
    else:
        assert left == []
        assert os.listdir(tmp_path) == ["brains.wirehead"]


def test_what_a_killed_clean_has_left_goes_with_the_next(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(Cache(keys))
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "_remove", staticmethod(lambda folder: []))
        assert Cache(keys).store.clean() == []
    (aside,) = tmp_path.iterdir()
    (aside / "0123456789abcdef.leases").mkdir()
    others = tmp_path / f".brains.wirehead.{'0' * 32}" / "0123456789abcdef.leases"
    others.mkdir(parents=True)  # not ours: it has no mark
    fill(Cache(keys))
    assert Cache(keys).store.clean() == []
    assert [*tmp_path.iterdir()] == [others.parent]
    assert others.is_dir()


def test_clean_removes_leftovers_of_its_cache_alone(tmp_path: Path, keys: dict[str, Any]) -> None:
    ours, theirs, other = (
        f".{name}.wirehead.{digit * 32}" for name, digit in (("[ab]", "0"), ("a", "1"), ("[ab]", "2"))
    )
    fill(Cache(keys))
    for name in (ours, theirs):
        (tmp_path / name).mkdir()
        (tmp_path / name / "headrace-wirehead-cache").touch()
    (tmp_path / other).symlink_to(tmp_path / "brains.wirehead")  # which another user may have made
    fill(Cache({**keys, "DBNAME": "[ab]"}))
    assert Cache({**keys, "DBNAME": "[ab]"}).store.clean() == []
    assert sorted(os.listdir(tmp_path)) == sorted([theirs, other, "brains.wirehead"])
    assert Cache(keys, create=False).current() == 1


def test_a_cache_that_must_not_be_removed_is_an_error(
    tmp_path: Path, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = Cache(keys)
    fill(cache)
    config, unlink = config_file(tmp_path, keys), os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if str(path).startswith("00-"):
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    assert main(["clean", "--config", config]) == 1
    said = capsys.readouterr()
    assert "brains.wirehead cannot be used: Operation not permitted: use a DIRECTORY" in said.err
    assert "removed" not in said.out
    for operation in (lambda: cache.store.drop(1), lambda: cache.store.drop_incarnation(str(cache.incarnation))):
        with pytest.raises(StoreError, match="Operation not permitted"):
            operation()


def test_a_file_system_without_hard_links_is_refused(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source)

    monkeypatch.setattr(os, "link", refuse)  # as FAT and exFAT do
    with pytest.raises(StoreError, match="use a DIRECTORY that you can write to, on a file system that has hard links"):
        Cache(keys)


def test_foreign_files_end_neither_generators_nor_readers(keys: dict[str, Any], folder: Path) -> None:
    clock = [0.0]
    cache = Cache(keys, clock=lambda: clock[0])
    fill(cache)
    tables = [table(cache, name) for name in ("swaps", "verified", "rounds", "graves", "leases")]
    foreign = [path / name for path in (folder, *tables) for name in ("2024-data.csv", "000-notes.json", "folder")]
    for path in (*foreign, table(cache, "000000000001.samples.00") / "2024-data.csv"):
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if path.name == "folder" else path.write_text('{"a": 1}' if path.suffix == ".json" else "a;b")
    for name in ("000000000009.backup", f"{cache.incarnation}.000000000009.chunks.old"):
        (folder / name).mkdir()
    assert cache.store.generations() == [1]
    fill(cache, 1)
    assert cache.current() == 2
    reader = Reader(cache, ("data",))
    assert reader.pin_current(1) == 2
    assert int(reader.read(2, 1)["data"][1]) == 1
    assert cache.fill(2) == 2
    reader.close()
    manager = GenerationManager(cache)
    for generation in range(2, 5):  # old entries, and leases that nobody renews, are removed
        fill(cache, generation)
        clock[0] += 1000
        manager.step()
        manager.close()
    assert not [path for path in foreign if not path.exists()]


@pytest.mark.parametrize("was_there", [False, True])
def test_only_its_owner_can_enter_the_folder(keys: dict[str, Any], folder: Path, was_there: bool) -> None:
    previous = os.umask(0)
    if was_there:
        folder.mkdir(parents=True)
    try:
        fill(Cache(keys))
    finally:
        os.umask(previous)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_another_users_folder_is_refused(keys: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cache(keys).close()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    for create in (True, False):
        with pytest.raises(StoreError, match=f"{folder} belongs to another user"):
            Cache(keys, create=create)


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(keys: dict[str, Any], folder: Path, mode: int) -> None:
    Cache(keys).close()
    folder.chmod(mode)
    for create in (True, False):
        with pytest.raises(StoreError, match=rf"{folder} has mode {mode:04o}, so that other users .*: chmod 700 "):
            Cache(keys, create=create)
    folder.chmod(0o755)
    Cache(keys).close()


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "lustre", "cifs", "smb3", "wekafs", "fuse.sshfs", "fuse.ceph-fuse", "fuse.mountpoint-s3"]
)
def test_network_file_systems_are_refused(
    tmp_path: Path, keys: dict[str, Any], folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_stores, "_file_system", lambda folder: kind)
    with pytest.raises(StoreError, match=rf"network file system \({kind}\).*MONGOHOST"):
        Cache(keys)
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(local_stores, "_file_system", lambda path: kind if path == folder else "ext4")
    with pytest.raises(StoreError, match=rf"network file system \({kind}\).*MONGOHOST"):
        Cache(keys)


def test_file_systems_are_known_by_the_longest_mount_point(tmp_path: Path) -> None:
    assert _file_system(Path("/proc/self")) == "proc"
    assert _file_system(tmp_path) not in ("", "proc")


def test_readers_and_status_create_nothing(
    tmp_path: Path, keys: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_file(tmp_path, {**keys, "SWAP_CAP": 10})
    assert main(["status", "--config", config]) == 0
    with pytest.raises(TimeoutError, match="no data"):
        Cache(keys, create=False).wait_for_data(0.01)
    with pytest.raises(TimeoutError, match="no data"):
        MongoheadDataset({**keys, "SWAP_CAP": 10}, timeout=0.01)
    assert not folder.exists()
    fill(Cache(keys))  # with another SWAP_CAP than the one that was looked for
    with pytest.raises(StoreError, match="was made with SWAP_CAP 2"):
        Cache({**keys, "SWAP_CAP": 10}, create=False)


def test_settings_are_checked_when_the_data_come(keys: dict[str, Any]) -> None:
    early = Cache({**keys, "SWAP_CAP": 3}, create=False)
    fill(Cache(keys))
    with pytest.raises(StoreError, match="was made with SWAP_CAP 2, but the configuration says 3"):
        early.wait_for_data(1)


def test_a_reader_does_not_make_a_cache_that_was_removed(keys: dict[str, Any], folder: Path) -> None:
    fill(Cache(keys))
    cache = Cache(keys, create=False)
    reader = Reader(cache, ("data",))
    reader.pin_current(1)
    cache.store.clean()
    with pytest.raises(CacheGoneError, match=r"was removed .* start this process again"):
        cache.store.insert("rounds", "x", {})
    reader.close()
    assert not folder.exists()


def test_errors_of_the_folder_are_store_errors(
    keys: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(keys)
    table(cache, "rounds").write_text("a file where a folder should be")
    for operation in (
        lambda: cache.store.insert("rounds", "1", {}),
        lambda: cache.store.replace("rounds", "1", {}),
        lambda: cache.store.scan("rounds"),
        lambda: cache.store.remove("rounds", "1"),
    ):
        with pytest.raises(StoreError, match=r"brains\.wirehead"):
            operation()


_TWO = """
import os, sys
from headrace.wirehead.config import Config
from headrace.wirehead._stores.local_store import LocalStore
directory, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = LocalStore(Config(swap_cap=2, dbname="brains", directory=directory))
store.use("0" * 16)
os.getpid = lambda: 1  # as in a container
print(flush=True)
sys.stdin.readline()
for k in range(count):
    store.insert("rounds", f"{me}-{k:04d}", {"by": me, "k": k})
    store.write_chunks(1, {f"00-{me}-{k}-0": me.encode() * 1000})
"""


def test_processes_of_the_same_number_do_not_mix_their_files(tmp_path: Path, keys: dict[str, Any]) -> None:
    count = 300
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _TWO, str(tmp_path), name, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    for process in processes:
        process.communicate("\n")
        assert process.returncode == 0
    store = LocalStore(Config.load(keys))
    store.use("0" * 16)
    documents = store.scan("rounds")
    assert len(documents) == 2 * count
    for key, document in documents.items():
        assert key == f"{document['by']}-{document['k']:04d}"
    for name in "ab":
        chunks = store.read_chunks(1, [f"00-{name}-{k}-0" for k in range(count)])
        assert all(chunk is not None and bytes(chunk) == name.encode() * 1000 for chunk in chunks)


def test_a_file_that_is_being_written_is_nobody_elses(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (LocalStore(Config.load(keys)) for _ in range(2))  # of processes of the same number
    monkeypatch.setattr(os, "getpid", lambda: 1)
    long, link = {"by": "first", "text": "x" * 100}, os.link

    def insert_before(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        assert second.insert("rounds", "b", {"by": "second"})
        link(source, target)

    for store in (first, second):
        store.use("0" * 16)
    monkeypatch.setattr(os, "link", insert_before)
    assert first.insert("rounds", "a", long)
    assert first.scan("rounds") == {"a": long, "b": {"by": "second"}}


def test_what_is_cleaned_while_somebody_writes_is_gone_for_both(keys: dict[str, Any]) -> None:
    config = Config.load(keys)
    for _ in range(20):
        store, errors = LocalStore(config), []
        store.use("0" * 16)
        begun = threading.Event()

        def write(store: LocalStore, errors: list[Exception], begun: threading.Event) -> None:
            try:
                for k in itertools.count():
                    store.write_chunks(k % 3, {f"00-a-{k}-{i}": b"a" for i in range(3)})
                    store.insert("rounds", f"{k:04d}", {"k": k})
                    begun.set()
            except Exception as failure:
                errors.append(failure)

        thread = threading.Thread(target=write, args=(store, errors, begun))
        thread.start()
        assert begun.wait(100)
        assert LocalStore(config, create=False).clean() == []
        thread.join(100)
        assert [type(error) for error in errors] == [CacheGoneError]
        assert os.listdir(config.local_directory.parent) == []


def test_threads_do_not_mix_their_files(keys: dict[str, Any]) -> None:
    store = LocalStore(Config.load(keys))
    store.use("0" * 16)

    def write(name: str) -> None:
        for k in range(100):
            store.replace("rounds", f"{name}-{k}", {"by": name, "k": k})

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(key == f"{d['by']}-{d['k']}" for key, d in store.scan("rounds").items())
    assert len(store.scan("rounds")) == 300
