"""What PipeReader reads of a command."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headrace import errors, reader


def test_lines_of_a_command(tmp_path: Path) -> None:
    text = "".join(f"line {i} ä\n" for i in range(50)) + "without an end"
    (tmp_path / "plain file").write_text(text, "utf-8")
    (tmp_path / "zipped").write_bytes(gzip.compress(text.encode()))
    plain = reader.PipeReader(f"cat '{tmp_path / 'plain file'}'", bufsize=16)
    assert list(plain.get_line()) == text.split("\n")
    zipped = reader.PipeReader(f"cat {tmp_path / 'zipped'}", bufsize=16, file_type="gzip")
    assert list(zipped.get_line()) == text.split("\n")
    whole = reader.PipeReader(f"cat {tmp_path / 'zipped'}", file_type="gzip")
    assert "".join(whole.get_line(cut_lines=False)) == text
    with pytest.raises(errors.IoError, match="exited with status 3"):
        list(reader.PipeReader("sh -c 'exit 3'").get_line())
    with pytest.raises(errors.IoError, match="cannot run 'no-such-program': No such file"):
        reader.PipeReader("no-such-program")


@pytest.mark.parametrize("bufsize", [2, 50, 8192])
def test_gzip_files_may_follow_one_another(tmp_path: Path, bufsize: int) -> None:
    for i in range(3):
        (tmp_path / f"part-{i}").write_bytes(gzip.compress(f"{i} a\n{i} b\n".encode()))
    parts = reader.PipeReader(f"sh -c 'cat {tmp_path}/part-*'", bufsize, file_type="gzip")
    assert list(parts.get_line()) == ["0 a", "0 b", "1 a", "1 b", "2 a", "2 b"]
    with (tmp_path / "part-1").open("ab") as padded:
        padded.write(bytes(5000))
    parts = reader.PipeReader(f"sh -c 'cat {tmp_path}/part-*'", bufsize, file_type="gzip")
    assert list(parts.get_line()) == ["0 a", "0 b", "1 a", "1 b", "2 a", "2 b"]


def test_what_is_not_whole_or_not_compressed_is_told(tmp_path: Path) -> None:
    text = "".join(f"line {i}\n" for i in range(5000))
    whole = gzip.compress(text.encode())
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain").write_text("no gzip" * 100_000)  # more than a pipe holds
    seen: list[str] = []
    with pytest.raises(errors.DataLoss, match="cut' writes is cut off"):
        for line in reader.PipeReader(f"cat {tmp_path / 'cut'}", file_type="gzip").get_line():
            seen.append(line)
    assert len(seen) > 1
    assert text.startswith("\n".join(seen))
    with pytest.raises(errors.DataLoss, match="plain' writes is not compressed by gzip"):
        list(reader.PipeReader(f"cat {tmp_path / 'plain'}", file_type="gzip").get_line())
    with pytest.raises(errors.IoError, match="exited with status 3") as caught:
        list(reader.PipeReader(f"sh -c 'cat {tmp_path / 'cut'}; exit 3'", file_type="gzip").get_line())
    assert isinstance(caught.value.__cause__, errors.DataLoss)


def test_pieces_of_text_split_no_character(tmp_path: Path) -> None:
    text = "aä€😀" * 20
    (tmp_path / "text").write_text(text, "utf-8")
    for bufsize in (2, 3, 7):
        pieces = reader.PipeReader(f"cat {tmp_path / 'text'}", bufsize).get_line(cut_lines=False)
        assert "".join(pieces) == text
    (tmp_path / "text").write_bytes("aä".encode()[:-1])
    assert "".join(reader.PipeReader(f"cat {tmp_path / 'text'}").get_line(cut_lines=False)) == "a\ufffd"
