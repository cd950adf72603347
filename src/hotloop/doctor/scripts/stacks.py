"""What a sampler saw: stacks of Python frames, the outermost first, and how often each was there."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

OURS = "hotloop."
"""How functions begin that the hook has put around what is written in C."""
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)$")
_THREAD = re.compile(r"^thread \(\w+\)(?:: (?P<name>.*))?$")


class Frame(NamedTuple):
    """A function that was called, and where it was in it."""

    function: str
    """With its class: `Env.step`."""
    file: str
    line: int

    @property
    def name(self) -> str:
        """Without class and enclosing functions."""
        return self.function.rpartition(".")[2]

    @property
    def mark(self) -> str:
        """What the hook calls it; empty for all others."""
        return self.function.removeprefix(OURS) if self.function.startswith(OURS) else ""


class Stack(NamedTuple):
    """The same frames, seen so many times in one thread."""

    thread: str
    frames: tuple[Frame, ...]
    samples: int


def read_stacks(text: str) -> list[Stack]:
    """As py-spy writes them with `--format raw --threads`; what is no stack is left out."""
    return list(_stacks(text.splitlines()))


def _stacks(lines: Iterable[str]) -> Iterator[Stack]:
    for line in lines:
        said, _, number = line.rpartition(" ")
        if not number.isdigit():
            continue
        first, *rest = said.split(";")
        thread = _THREAD.match(first)
        frames = tuple(_frames([*rest] if thread else [first, *rest]))
        if frames:
            yield Stack((thread["name"] or "") if thread else "", frames, int(number))


def _frames(said: Iterable[str]) -> Iterator[Frame]:
    for each in said:
        if found := _FRAME.match(each):
            yield Frame(found["function"], found["file"], int(found["line"] or 0))


def busiest_thread(stacks: Iterable[Stack], marks: frozenset[str]) -> str:
    """The thread in which most of what bears one of these marks was seen; else the one with most samples.

    Of several threads one trains; others wait, draw or write.
    """
    marked, seen = dict[str, int](), dict[str, int]()
    for stack in stacks:
        seen[stack.thread] = seen.get(stack.thread, 0) + stack.samples
        if any(frame.mark in marks for frame in stack.frames):
            marked[stack.thread] = marked.get(stack.thread, 0) + stack.samples
    of = marked or seen
    return max(of, key=lambda thread: of[thread]) if of else ""
