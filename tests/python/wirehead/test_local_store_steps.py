"""What comes between two steps of the store in a folder: another process, a short write, a deletion."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace.wirehead._stores.local_store as local_stores
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._stores.local_store import LocalStore
from headrace.wirehead.config import Config
from headrace.wirehead.errors import CacheGoneError, StoreError

MARK = "headrace-wirehead-cache"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.load({"DBNAME": "brains", "DIRECTORY": str(tmp_path), "SWAP_CAP": 2})


@pytest.fixture
def folder(config: Config) -> Path:
    return config.local_directory


@pytest.fixture
def store(config: Config) -> LocalStore:
    opened = LocalStore(config)
    opened.use("0" * 16)
    return opened


def test_a_write_that_stores_less_than_it_was_given_goes_on(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(local_stores.os, "write", lambda file, data: write(file, bytes(data[:3])))
    assert store.insert("rounds", "a", {"number": 12345})
    store.write_chunks(1, {"00-a": b"0123456789", "00-empty": b""})
    assert store.find("rounds", "a") == {"number": 12345}
    found = store.read_chunks(1, ["00-a", "00-empty", "00-none"])
    assert [None if chunk is None else bytes(chunk) for chunk in found] == [b"0123456789", b"", None]


def test_nothing_else_is_left_of_what_is_stored(store: LocalStore, folder: Path) -> None:
    for _ in range(2):
        store.insert("rounds", "a", {})
        store.replace("leases", "b", {})
        store.write_chunks(1, {"00-a": b"a"})
    files = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert files == sorted([MARK, "a", "b", ".b.now", "00-a"])


def test_a_document_that_is_being_removed_is_never_an_earlier_one(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for beat in (1, 2):
        store.replace("leases", "a", {"beat": beat})
    unlink, seen = os.unlink, []

    def look(path: Any, **options: Any) -> None:
        unlink(path, **options)
        found = store.find("leases", "a")
        seen.append(found and found["beat"])

    monkeypatch.setattr(local_stores.os, "unlink", look)
    store.remove("leases", "a")
    assert seen in ([2, None], [None, None])
    assert store.scan("leases") == {}
    store.remove("leases", "a")  # what is not there


def test_what_others_remove_while_it_is_listed_is_left_out(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        store.insert("rounds", name, {"name": name})
    document = local_stores._document

    def removed(folder: Path, key: str) -> Any:
        if key == "b":
            store.remove("rounds", "b")
        return document(folder, key)

    monkeypatch.setattr(local_stores, "_document", removed)
    assert store.scan("rounds").keys() == {"a", "c"}


@pytest.mark.parametrize("length", [2, 4])
def test_a_chunk_of_another_length_is_missing(store: LocalStore, length: int) -> None:
    store.write_chunks(1, {"00-a": b"abc", "00-b": b"abc"})
    assert store.missing_chunks(1, {"00-a": 3, "00-b": length, "00-c": 3}) == ["00-b", "00-c"]


def test_generations_and_incarnations_are_removed_one_by_one(config: Config) -> None:
    stores = [LocalStore(config) for _ in range(2)]
    for store, incarnation in zip(stores, ("0" * 16, "1" * 16)):
        store.use(incarnation)
        for generation in (1, 2):
            store.write_chunks(generation, {"00-a": b"a"})
            store.insert(f"{generation:012d}.samples.00", "a", {})
    stores[0].drop(1)
    assert [store.generations() for store in stores] == [[2], [1, 2]]
    stores[1].drop_incarnation("0" * 16)
    assert [store.generations() for store in stores] == [[], [1, 2]]
    assert stores[0].incarnations() == ["1" * 16]


def renew_all(folder: Path) -> None:
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    shutil.rmtree(folder)
    (folder.parent / "so that no number is given again").mkdir()
    copy.rename(folder)


def renew_mark(folder: Path) -> None:
    (folder / "another").touch()
    os.replace(folder / "another", folder / MARK)


def keep_mark(folder: Path) -> None:
    new = folder.with_name("new")
    new.mkdir(0o700)
    os.link(folder / MARK, new / MARK)
    shutil.rmtree(folder)
    new.rename(folder)


def put_a_file_in_its_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize("replace", [renew_all, renew_mark, keep_mark, put_a_file_in_its_place, shutil.rmtree])
@pytest.mark.parametrize("has_table", [False, True])
def test_nothing_is_stored_where_another_folder_has_taken_the_caches_place(
    store: LocalStore, folder: Path, replace: Any, has_table: bool
) -> None:
    if has_table:
        store.insert("rounds", "a", {})
    replace(folder)
    before = sorted(folder.rglob("*"))
    for put in (
        lambda: store.insert("rounds", "b", {}),
        lambda: store.replace("rounds", "b", {}),
        lambda: store.write_chunks(1, {"00-a": b"a"}),
    ):
        with pytest.raises(CacheGoneError):
            put()
    assert sorted(folder.rglob("*")) == before


def test_nothing_is_stored_where_another_folder_takes_the_caches_place_at_that_moment(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_name = local_stores.uuid.uuid4

    def replaced() -> Any:
        monkeypatch.setattr(local_stores.uuid, "uuid4", new_name)
        is_gone = store._is_gone

        def looked() -> bool:
            monkeypatch.setattr(store, "_is_gone", is_gone)
            found = is_gone()
            renew_all(folder)
            return found

        monkeypatch.setattr(store, "_is_gone", looked)
        return new_name()

    monkeypatch.setattr(local_stores.uuid, "uuid4", replaced)
    with pytest.raises(CacheGoneError):
        store.insert("rounds", "a", {})
    assert os.listdir(folder) == [MARK]


def test_two_processes_mark_an_empty_folder(config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    mark = local_stores._make_mark

    def other_first(made: Path) -> None:
        monkeypatch.setattr(local_stores, "_make_mark", mark)
        LocalStore(config)
        mark(made)

    monkeypatch.setattr(local_stores, "_make_mark", other_first)
    LocalStore(config)
    assert os.listdir(folder) == [MARK]


def test_a_mark_that_comes_between_two_looks_is_one(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalStore(config)
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.name != MARK and exists(path))
    LocalStore(config)
    LocalStore(config, create=False)
    assert os.listdir(folder) == [MARK]


@pytest.mark.parametrize("step", ["mkdir", "rename"])
def test_two_processes_make_the_folder(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    original = getattr(os, step)

    def other_first(*arguments: Any) -> None:
        monkeypatch.setattr(local_stores.os, step, original)
        Cache(config).close()
        original(*arguments)

    monkeypatch.setattr(local_stores.os, step, other_first)
    Cache(config).close()
    assert os.listdir(tmp_path) == ["brains.wirehead"]


@pytest.mark.parametrize("create", [True, False])
def test_a_folder_that_is_cleaned_while_it_is_checked(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch, create: bool
) -> None:
    LocalStore(config)
    lstat, calls = os.lstat, itertools.count()

    def cleaned(path: Any, **options: Any) -> Any:
        if Path(path) == folder and next(calls) == 1:  # the first one saw that it is there
            shutil.rmtree(folder)
        return lstat(path, **options)

    monkeypatch.setattr(local_stores.os, "lstat", cleaned)
    LocalStore(config, create)
    assert folder.exists() == create


def test_two_processes_clean(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.insert("rounds", "a", {})
    unlink = os.unlink

    def other_first(path: Any, **options: Any) -> None:
        if Path(path).name == MARK:
            monkeypatch.setattr(local_stores.os, "unlink", unlink)
            assert LocalStore(store.config, create=False).clean() == []
        unlink(path, **options)

    monkeypatch.setattr(local_stores.os, "unlink", other_first)
    assert store.clean() == []
    assert os.listdir(tmp_path) == []


def test_clean_removes_the_settings_first(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("rounds", "settings", "swaps"):
        store.insert(table, "a", {})
    rmtree, removed = shutil.rmtree, []

    def remove(folder: Path, **options: Any) -> None:
        removed.append(folder.name)
        rmtree(folder, **options)

    monkeypatch.setattr(local_stores.shutil, "rmtree", remove)
    assert store.clean() == []
    assert (removed[0], len(removed)) == ("settings", 3)


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_what_is_not_the_caches_stays_at_its_place(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store.insert("rounds", "a", {})
    rename, renamed = os.rename, []
    if moment == "before":
        (folder / "notes").touch()

    def come(source: Path, target: Path) -> None:
        if not renamed:
            (folder / "notes").touch()
        renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(local_stores.os, "rename", come)
    assert store.clean() == [str(folder / "notes")]
    assert sorted(os.listdir(folder)) == sorted([MARK, "notes"])
    assert len(renamed) == (0 if moment == "before" else 2)


def test_a_folder_that_another_process_cleans_first(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = store._check_root

    def other_first() -> None:
        monkeypatch.setattr(store, "_check_root", check)
        shutil.rmtree(folder)
        check()

    monkeypatch.setattr(store, "_check_root", other_first)
    assert store.clean() == []


@pytest.mark.parametrize("step", ["link", "replace"])
def test_a_folder_that_is_cleaned_while_something_is_stored(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    original = getattr(os, step)

    def cleaned(source: Any, target: Any) -> None:
        shutil.rmtree(folder)
        original(source, target)

    monkeypatch.setattr(local_stores.os, step, cleaned)
    with pytest.raises(CacheGoneError):
        store.insert("rounds", "a", {}) if step == "link" else store.write_chunks(1, {"00-a": b"a"})
    assert not folder.exists()


def test_folders_of_somebody_elses_that_are_named_as_tables_are_no_cache(config: Config, folder: Path) -> None:
    for name in ("swaps", "rounds"):
        (folder / name).mkdir(parents=True)
    with pytest.raises(StoreError, match=r"is not a cache of headrace\.wirehead"):
        LocalStore(config)
    with pytest.raises(StoreError, match=r"is not a cache of headrace\.wirehead"):
        LocalStore(config, create=False)
    assert sorted(os.listdir(folder)) == ["rounds", "swaps"]


def test_an_empty_folder_that_is_no_cache_yet_stays(config: Config, folder: Path) -> None:
    folder.mkdir()
    assert LocalStore(config, create=False).clean() == []
    assert folder.exists()


def test_a_link_in_the_place_of_the_folder_is_not_cleaned(config: Config, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    LocalStore(Config.load({"DBNAME": "brains", "DIRECTORY": str(other), "SWAP_CAP": 2}))
    folder.symlink_to(other / folder.name)
    with pytest.raises(StoreError, match="is a symbolic link"):
        LocalStore(config, create=False)
    store = object.__new__(LocalStore)
    store.config, store._root, store._incarnation = config, folder, None
    with pytest.raises(StoreError, match="is a symbolic link"):
        store.clean()
    assert (other / folder.name / MARK).exists()


def test_leftovers_of_another_user_are_not_cleaned(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / f".brains.wirehead.{'0' * 32}"
    left.mkdir()
    (left / MARK).touch()
    lstat = os.lstat

    def of_another(path: Any, **options: Any) -> Any:
        found = lstat(path, **options)
        return os.stat_result([*found[:4], found.st_uid + 1, *found[5:10]]) if Path(path) == left else found

    monkeypatch.setattr(local_stores.os, "lstat", of_another)
    assert store.clean() == []
    assert os.listdir(tmp_path) == [left.name]


def test_a_cache_that_is_cleaned_while_its_first_table_is_made_is_made_again(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, calls = os.mkdir, itertools.count()

    def cleaned(path: Any, *arguments: Any) -> None:
        if Path(path).name == "settings" and next(calls) == 0:
            shutil.rmtree(folder)
        mkdir(path, *arguments)

    monkeypatch.setattr(local_stores.os, "mkdir", cleaned)
    cache = Cache(config)
    assert cache.incarnation is not None
    assert next(calls) > 1


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/other", "ext4"),
        ("/data/cache", "nfs4"),
        ("/data", "nfs4"),
        ("/database", "ext4"),
        ("/with space/x", "xfs"),
        ("/link", "nfs4"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_last_mount_on_the_longest_path(
    folder: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = [
        "1 0 0:1 / / rw - ext4 /dev/a rw",
        "2 1 0:2 / /data rw - tmpfs b rw",
        "3 1 0:3 / /data rw shared:1 - nfs4 c rw",
        r"4 1 0:4 / /with\040space rw - xfs d rw",
    ]
    text = "\n".join(mounts).encode() + b"\n5 1 0:5 / /\xe9 rw - xfs e rw"
    monkeypatch.setattr(Path, "read_text", lambda path, **options: text.decode("utf-8", **options))
    monkeypatch.setattr(local_stores.os.path, "realpath", lambda path: str(path).replace("/link", "/data/cache"))
    assert local_stores._file_system(Path(folder)) == kind


def test_a_system_that_lists_no_mounts_has_no_known_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", fail)
    assert local_stores._file_system(Path("/")) == ""


@pytest.mark.parametrize("stored", [b"", b"{", b"[1]", b"3", b"\xff", b"\0" * 10])
def test_a_document_that_is_damaged_is_an_empty_one(store: LocalStore, stored: bytes) -> None:
    store.insert("rounds", "a", {"number": 1})
    (store._table("rounds") / "a").write_bytes(stored)
    assert store.find("rounds", "a") == {}
    assert store.scan("rounds") == {"a": {}}


def test_in_a_file_that_has_taken_the_folders_place_nothing_is_found(store: LocalStore, folder: Path) -> None:
    store.insert("rounds", "a", {})
    put_a_file_in_its_place(folder)
    assert store.find("rounds", "a") is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, r"cannot hold more: .*\. Make room, or lower SWAP_CAP") for name in ("ENOSPC", "EDQUOT", "EFBIG")),
        *((name, "cannot be used: .*: use a DIRECTORY") for name in ("EACCES", "EPERM", "EROFS", "EOPNOTSUPP")),
        *((name, rf"failed: \[Errno {getattr(errno, name)}\]") for name in ("EIO", "ENOTDIR")),
    ],
)
def test_an_error_of_the_file_system_says_what_to_do(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    monkeypatch.setattr(local_stores.os, "link", fail)
    with pytest.raises(StoreError, match=f"^{re.escape(str(folder))} {text}"):
        store.insert("rounds", "a", {})


def test_a_folder_that_is_missing_four_times_is_an_error(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, pauses = [], list[float]()

    def fail(*arguments: Any) -> None:
        tries.append(arguments)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(local_stores.os, "link", fail)
    monkeypatch.setattr(local_stores.time, "sleep", pauses.append)
    with pytest.raises(StoreError, match=rf"^{re.escape(str(folder))} failed: .*No such file"):
        store.insert("rounds", "a", {})
    assert (len(tries), pauses) == (4, [0.01, 0.04, 0.16])


def test_a_folder_that_cannot_be_made_says_which(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = Config.load({"DBNAME": "brains", "DIRECTORY": str(tmp_path / "file" / "below"), "SWAP_CAP": 2})
    with pytest.raises(
        StoreError, match=r"^the folder .*/file/below/brains\.wirehead cannot be created: Not a dir.*: use"
    ):
        LocalStore(config)


def test_a_link_to_nowhere_is_no_missing_cache(config: Config, folder: Path) -> None:
    folder.symlink_to("/nowhere")
    with pytest.raises(StoreError, match="is a symbolic link"):
        LocalStore(config, create=False)


def test_reading_chunks_leaves_no_descriptor_open(store: LocalStore) -> None:
    store.write_chunks(1, {"00-a": b"a", "00-b": b""})
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        assert list(store.read_chunks(1, ["00-a", "00-b"])) == [b"a", b""]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_folder_that_is_cleaned_before_it_has_its_name_is_made_again(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def cleaned(source: Path, target: Path) -> None:
        monkeypatch.setattr(local_stores.os, "rename", rename)
        assert LocalStore(config, create=False).clean() == []
        rename(source, target)

    monkeypatch.setattr(local_stores.os, "rename", cleaned)
    LocalStore(config)
    assert os.listdir(folder) == [MARK]


def test_a_cache_that_was_gone_when_its_incarnation_was_found_is_gone(config: Config, folder: Path) -> None:
    store = LocalStore(config)
    shutil.rmtree(folder)
    store.use("0" * 16)
    with pytest.raises(CacheGoneError):
        store.insert("rounds", "a", {})


def test_the_folders_above_are_made_or_need_not_be_there(tmp_path: Path) -> None:
    config = Config.load({"DBNAME": "brains", "DIRECTORY": str(tmp_path / "a" / "b"), "SWAP_CAP": 2})
    assert LocalStore(config, create=False).clean() == []
    assert not (tmp_path / "a").exists()
    assert LocalStore(config).insert("rounds", "a", {})


def test_two_processes_make_a_table(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def other_first(path: Path, *arguments: Any) -> None:
        mkdir(path, *arguments)
        mkdir(path, *arguments)

    monkeypatch.setattr(local_stores.os, "mkdir", other_first)
    assert store.insert("rounds", "a", {})
    assert store.scan("rounds") == {"a": {}}


def test_nobody_sees_a_document_that_is_being_written(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    link, seen = os.link, []

    def look(*arguments: Any) -> None:
        seen.append(store.scan("rounds"))
        link(*arguments)

    monkeypatch.setattr(local_stores.os, "link", look)
    assert store.insert("rounds", "a", {})
    assert seen == [{}]
