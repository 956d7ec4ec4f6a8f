"""A queue as JSON lines, one message a line (`penstock.documents`), on every store and over HTTP.

Lines are imported in batches, each with a token made of its lines and its place in the file. So a second import of the same
lines adds nothing for as long as the queue remembers the tokens, and an import that was interrupted can simply be made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

from penstock.documents import to_document, to_draft
from penstock.errors import BadInput, BadMessage, OutcomeUnknown, PenstockError
from penstock.message import MAX_NUMBER, Draft, Settings, State
from penstock.policy import MAX_MESSAGE, admit, check_count
from penstock.queue.protocol import Queue

PAGE = 64
"""How many messages are read at a time: at most 70 MB of them."""
BATCH, BATCH_BYTES = 500, 2 * 1024 * 1024
"""Where a batch of an import ends. It depends on the lines alone, so that a second import has the same batches."""
MAX_LINE = 8 * MAX_MESSAGE
"""Bytes of a line: JSON may need six for one of a body."""
REMEMBER = 86400
"""Seconds for which a queue remembers what was imported."""
PLAIN = Settings()


class Exported(NamedTuple):
    """A line; None instead of it for a damaged message."""

    id: str
    line: str | None


def export_lines(queue: Queue) -> Iterator[Exported]:
    """Every message that is in the queue when its turn comes, in the order of sending, whatever its state."""
    start = 0
    while page := queue.scan(start, limit=PAGE):
        for message in page:
            if message.intact and message.state is not State.DAMAGED:
                document = {name: value for name, value in to_document(message).items() if value not in (None, {})}
                if not message.failures:  # an older version would refuse the name
                    del document["failures"]
                yield Exported(message.id, json.dumps(document))
            else:
                yield Exported(message.id, None)
        start = page[-1].number + 1


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, as far as they are not too long."""
    while line := stream.readline(MAX_LINE + 1):
        yield line


class Imported(NamedTuple):
    """How many lines were messages, and how many were empty."""

    messages: int
    empty: int


def import_lines(
    queue: Queue,
    lines: Iterable[bytes],
    *,
    token: str = "",
    remember: float = REMEMBER,
    skip: int = 0,
    advance: Callable[[int, int], object] = lambda _size, _done: None,
) -> Imported:
    """Send a message for each line, in order; the first ``skip`` lines were imported before.

    In a plain queue, the same lines are imported once within ``remember`` seconds; with another ``token`` they are imported
    again. (A queue that deduplicates uses its own rule.) A line that is no message raises `BadMessage` with its number; nothing
    of its batch is sent. ``advance`` is called after each batch, with its bytes and with the number of lines that are done."""
    check_count(skip, "skip", 0, MAX_NUMBER, BadInput)
    done = messages = 0
    try:
        for place, batch in enumerate(_batches(lines)):
            texts = [line for line in map(bytes.strip, batch) if line]
            end = done + len(batch)
            if done < skip < end:
                raise BadInput(f"skip {skip} ends within a batch of lines: skip {done}, or {end}")
            if skip < end:
                _send(queue, batch, done, _token(token, place, texts), remember)
            done, messages = end, messages + len(texts)
            advance(sum(map(len, batch)), done)
    except (PenstockError, OSError, KeyboardInterrupt) as error:
        least = "at least " if isinstance(error, KeyboardInterrupt | OutcomeUnknown) else ""
        again = f"importing them again adds nothing, for {remember:g} s; after that, skip them"
        error.add_note(f"{least}the first {done:,} lines are safely imported: {again}" if done else "nothing was imported")
        raise
    return Imported(messages, done - messages)


def _send(queue: Queue, batch: list[bytes], before: int, token: str, remember: float) -> None:
    now = queue.pulse().at
    drafts = [_read(line, number, now) for number, line in enumerate(batch, before + 1) if line.strip()]
    if drafts:
        queue.send_once(drafts, token, remember=remember)


def _batches(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line)
        if len(batch) == BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _token(given: str, place: int, lines: list[bytes]) -> str:
    digest = hashlib.sha256(json.dumps([given, place, list(map(len, lines))]).encode())
    for line in lines:
        digest.update(line)
    return f"import {digest.hexdigest()[:50]}"


def _read(line: bytes, number: int, now: int) -> Draft:
    try:
        if len(line) > MAX_LINE:
            raise BadMessage(f"it has more than {MAX_LINE} bytes")
        draft = to_draft(json.loads(line), now)
        admit(draft, PLAIN, now)
    except json.JSONDecodeError as error:
        raise BadMessage(f"line {number} is no JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadMessage(f"line {number}: it is nested too deeply") from None
    except ValueError as error:  # which a `BadMessage` is too
        raise BadMessage(f"line {number}: {error}") from None
    return draft
