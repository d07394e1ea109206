"""The lines that a command writes."""

from __future__ import annotations

import codecs
import functools
import shlex
import signal
import subprocess
import zlib
from collections.abc import Iterable, Iterator

from headrace import errors
from headrace.reader._checks import check_positive

__all__ = ["PipeReader"]


class PipeReader:
    """Reads the lines that a command writes, such as ``PipeReader("hadoop fs -cat /path/part-*")``.

    Args:
        command: a program and its arguments, split as a shell splits words; no shell runs.
        bufsize: number of bytes to read at a time.
        file_type: "plain" or "gzip".

    Raises:
        InvalidArgument: one of these is out of range.
        IoError: there is no such program.
    """

    def __init__(self, command: str, bufsize: int = 8192, file_type: str = "plain") -> None:
        if not isinstance(command, str) or not command.strip():
            raise errors.InvalidArgument(f"command has to be a text, got {command!r}")
        if file_type not in ("plain", "gzip"):
            raise errors.InvalidArgument(f'file_type has to be "plain" or "gzip", got {file_type!r}')
        check_positive("bufsize", bufsize)
        self.command, self.bufsize, self.file_type = command, bufsize, file_type
        try:
            self.process = subprocess.Popen(shlex.split(command), bufsize=bufsize, stdout=subprocess.PIPE)
        except OSError as error:
            raise errors.IoError(f"cannot run {command!r}: {error.strerror}") from error

    def get_line(self, cut_lines: bool = True, line_break: str = "\n") -> Iterator[str]:
        """The lines that it writes, in UTF-8, without their ends.

        Args:
            cut_lines: yield lines; otherwise chunks of at most ``bufsize`` bytes before decompression.
            line_break: the separator of lines.

        Raises:
            IoError: in the end, if the command has failed.
            DataLoss: what it writes is cut off, or not compressed by gzip.
        """
        if not isinstance(line_break, str):
            raise errors.TypeMismatch(f"line_break has to be a text, got {type(line_break).__name__}")
        output = self.process.stdout
        assert output is not None
        chunks: Iterator[bytes] = iter(functools.partial(output.read, self.bufsize), b"")
        if self.file_type == "gzip":
            chunks = _decompressed(chunks, self.command)
        damage: errors.DataLoss | None = None
        try:
            yield from _lines(chunks, line_break) if cut_lines else _texts(chunks)
        except errors.DataLoss as error:
            damage = error
        finally:
            output.close()
            code = self.process.wait()
        if damage is not None and code in (0, -signal.SIGPIPE):  # it was not read to its end
            raise damage
        if code != 0:
            raise errors.IoError(f"{self.command!r} exited with status {code}") from damage


def _lines(chunks: Iterable[bytes], line_break: str) -> Iterator[str]:
    rest, mark = b"", line_break.encode()
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(mark)
        for line in lines:
            yield line.decode()
    if rest:
        yield rest.decode()


def _texts(chunks: Iterable[bytes]) -> Iterator[str]:
    """The text of chunks, which may end within a character: it is then part of the next."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for chunk in chunks:
        if text := decoder.decode(chunk):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def _decompressed(chunks: Iterable[bytes], command: str) -> Iterator[bytes]:
    """What gzip has compressed, in one file or several, one after the other. DataLoss if it is damaged, or cut off."""
    member, is_first = None, True
    try:
        for chunk in chunks:
            while chunk:
                if member is None and not is_first:
                    chunk = chunk.lstrip(b"\0")  # files may be padded
                    if not chunk:
                        break
                member, is_first = member or zlib.decompressobj(zlib.MAX_WBITS | 16), False
                yield member.decompress(chunk)
                chunk = member.unused_data
                if member.eof:
                    member = None
    except zlib.error as error:
        raise errors.DataLoss(f"what {command!r} writes is not compressed by gzip, or is damaged: {error}") from error
    if member is not None:
        raise errors.DataLoss(f"what {command!r} writes is cut off: it ends within a compressed file")
