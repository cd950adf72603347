"""Which cause the time of a stack belongs to, and the line of the user's own code that it is at.

A stack is read from the outside in: what a training does first says what all within it is for (a step of an env within
an evaluation is the evaluation's). Functions of libraries are known by their files, those of the hook by their marks;
of the user's own, names are asked, as programmers give them: `sample`, `push`, `evaluate`. A function within which the
training itself goes on is none of these, whatever its name. What is left is `other`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hotloop.doctor.scripts.stacks import Frame, Stack

OTHER = "other"
UPDATE, ACT = "update", "act"
"""Stages that become causes when more is known of them."""
TRAINS = frozenset({"backward", "optimizer", "env.step", "forward", "ask"})
"""Marks by which the thread that trains is known."""
Mine = Callable[[str], bool]
"""Whether a file is the user's own code."""


class Seen(NamedTuple):
    """What a stack's time is for."""

    cause: str
    at: Frame | None
    """The innermost frame of the user's own code that has to do with it."""


class Reader(NamedTuple):
    """What must be known of all stacks to read one."""

    is_mine: Mine
    learns: frozenset[tuple[str, str]]
    """Own functions, by file and name, within which gradient steps were taken."""
    plays: frozenset[tuple[str, str]]
    """And those within which envs were stepped."""


MARKS = {
    "backward": UPDATE,
    "optimizer": UPDATE,
    "zero_grad": UPDATE,
    "forward": UPDATE,
    "ask": ACT,
    "item": "host-sync",
    "transfer": "host-sync",
    "new_tensor": "conversion",
    "save": "checkpointing",
    "scalar": "logging",
    "sleep": "waiting",
    "send": "pickling",
    "loads": "pickling",
    "load_weights": "target-copy",
    "env.render": "rendering",
}
LOGS = r"/torch/utils/tensorboard/|/tensorboardX?/|/wandb/|/mlflow/|/tqdm/|/rich/|/logging/__init__|/matplotlib/"
WORKERS = r"/gymnasium/vector/async_vector_env\.py|/vec_env/subproc_vec_env\.py|/tianshou/env/worker/subproc"
WAITS = r"/multiprocessing/(connection|queues|synchronize|pool)\.py|/queue\.py|/threading\.py|/selectors\.py"
FILES: tuple[tuple[str, str], ...] = (
    (LOGS, "logging"),
    (r"/torch/serialization\.py", "checkpointing"),
    (WORKERS, "env-transport"),
    (r"/stable_baselines3/common/evaluation\.py", "evaluation"),
    (r"/multiprocessing/(reduction|shared_memory)\.py|/pickle\.py|/cloudpickle/", "pickling"),
    (WAITS, "waiting"),
    (r"/stable_baselines3/common/buffers\.py|/cleanrl_utils/buffers\.py|/tianshou/data/buffer/", "replay"),
    (r"/torch/(optim|autograd)/|/torch/nn/utils/clip_grad\.py", UPDATE),
    (r"/copy\.py", "debug-work"),
    (r"/random\.py", "replay-sample"),
)
ENDS = r"(_|$)"
NAMES: tuple[tuple[str, str], ...] = (
    (rf"^_?(run_)?(evaluate|evaluation|eval|test_agent|test_policy){ENDS}|_(eval|evaluate)$", "evaluation"),
    (rf"^_?(save|write_checkpoint|checkpoint){ENDS}", "checkpointing"),
    (rf"^_?(render|draw_frame){ENDS}", "rendering"),
    (r"priorit|sum_?tree|segment_?tree|^_?(retrieve|propagate)$", "priorities"),
    (r"soft_update|hard_update|update_target|sync_target|polyak|copy_target", "target-copy"),
    (rf"^_?(push|store|insert|remember|memorize|add_(transition|experience|sample|step)s?){ENDS}", "replay-insert"),
    (rf"^_?(sample|get_batch|make_batch|next_batch|collate|draw_batch|get_samples){ENDS}", "replay-sample"),
    (rf"^_?(log|write_metrics|print_stats|report){ENDS}", "logging"),
    (r"snapshot|check_weights|^_?debug", "debug-work"),
)
CLASSES: tuple[tuple[str, str], ...] = (
    (r"SumTree|SegmentTree|Prioriti", "priorities"),
    (r"Replay|Buffer|Memory", "replay"),
    (r"Logger|Writer|Meter", "logging"),
)
INSERTS = re.compile(r"push|add|store|insert|append|remember|extend|put")
TOO_OFTEN = ("evaluation", "checkpointing", "target-copy")
TEXTS: tuple[tuple[str, str], ...] = (
    (r"\bprint\(|\.write\(|\.flush\(", "logging"),
    (r"\.item\(\)|\.tolist\(\)|\.cpu\(\)|\.numpy\(\)", "host-sync"),
    (r"\b(Float|Double|Long|Int|Bool)Tensor\(|torch\.(tensor|as_tensor|from_numpy)\(", "conversion"),
    (r"\bpickle\.dump\(|\bnp\.save", "checkpointing"),
    (r"\brandom\.(sample|choices)\(", "replay-sample"),
)
"""What a line calls that is written in C and has no name of ours, where nothing else is known of it."""


def reader_of(stacks: Iterable[Stack], is_mine: Mine) -> Reader:
    """Which own functions the training goes on within."""
    within: dict[str, set[tuple[str, str]]] = {"learns": set(), "plays": set()}
    for stack in stacks:
        marks = {frame.mark for frame in stack.frames}
        own = {(frame.file, frame.function) for frame in stack.frames if not frame.mark and is_mine(frame.file)}
        if marks & {"backward", "optimizer"}:
            within["learns"] |= own
        if "env.step" in marks:
            within["plays"] |= own
    return Reader(is_mine, frozenset(within["learns"]), frozenset(within["plays"]))


def seen_as(frames: Sequence[Frame], reader: Reader, text_of: Callable[[Frame], str] = lambda frame: "") -> Seen:
    """The cause of a stack's time; `text_of` gives the text of a frame's line."""
    is_mine = reader.is_mine
    for place, frame in enumerate(frames):
        cause = _cause_of(place, frames, reader)
        if cause is None:
            continue
        if cause == "env-step":
            return _in_env(frames, place, is_mine)
        # Own code around a library's function is where it is called; own code that is named is where it goes on, but
        # for what is wrong by how often it is done: that is decided by who calls it.
        called_at = _innermost(frames[:place], is_mine)
        if not is_mine(frame.file) or (cause in TOO_OFTEN and called_at is not None):
            return Seen(cause, called_at)
        return Seen(cause, _innermost(frames, is_mine))
    at = _innermost(frames, is_mine)
    text = "" if at is None or at is not frames[-1] else text_of(at)
    return Seen(next((cause for pattern, cause in TEXTS if re.search(pattern, text)), OTHER), at)


def _cause_of(place: int, frames: Sequence[Frame], reader: Reader) -> str | None:
    """What a frame says all within it is for; None where it says nothing."""
    frame, further = frames[place], frames[place + 1 :]
    if frame.mark == "ask" and any(_only_learns(each, reader) for each in frames[:place]):
        return UPDATE  # row by row
    if frame.mark:
        return "env-step" if frame.mark.startswith(("env.step", "env.reset")) else MARKS.get(frame.mark)
    if not reader.is_mine(frame.file):
        return _of_library(frame, further, reader.is_mine)
    if frame.function == "<module>" or (frame.file, frame.function) in reader.learns:
        return None
    cause = _of_own(frame, further, reader.is_mine)
    does_more = (frame.file, frame.function) in reader.plays and cause not in ("evaluation", "rendering")
    return None if does_more else cause


def _only_learns(frame: Frame, reader: Reader) -> bool:
    """Whether gradient steps are taken within an own function, and no env is stepped."""
    own = (frame.file, frame.function)
    return not frame.mark and frame.function != "<module>" and own in reader.learns and own not in reader.plays


def _of_library(frame: Frame, further: Sequence[Frame], is_mine: Mine) -> str | None:
    found = next((cause for pattern, cause in FILES if re.search(pattern, frame.file)), None)
    if found == "replay":
        return "replay-insert" if INSERTS.search(frame.name) else "replay-sample"
    if found != "waiting":
        return found
    if any(is_mine(each.file) and not each.mark for each in further):
        return None  # a thread or a pool that runs what is the user's own
    inner = {each.mark for each in further} & {"send", "loads"}
    is_pickled = inner or any(re.search(FILES[4][0], each.file) for each in further)
    return "pickling" if is_pickled else "waiting"


def _of_own(frame: Frame, further: Sequence[Frame], is_mine: Mine) -> str | None:
    owner = frame.function.rpartition(".")[0]
    for pattern, cause in CLASSES:
        if re.search(pattern, owner):
            if cause != "replay":
                return cause
            if any(is_mine(each.file) and _is_of_priorities(each) for each in (frame, *further)):
                return "priorities"
            return "replay-insert" if INSERTS.search(frame.name) else "replay-sample"
    return next((cause for pattern, cause in NAMES if re.search(pattern, frame.name)), None)


def _is_of_priorities(frame: Frame) -> bool:
    return any(cause == "priorities" and re.search(pattern, frame.function) for pattern, cause in (*CLASSES, *NAMES))


def _in_env(frames: Sequence[Frame], place: int, is_mine: Mine) -> Seen:
    """A step of an env: its own work, drawing, or the way to another process."""
    within = frames[place + 1 :]
    at = _innermost(within, is_mine) or _innermost(frames[:place], is_mine)
    if any(frame.mark == "env.render" or re.match(r"_?render", frame.name) for frame in within):
        return Seen("rendering", at)
    if any(re.search(WORKERS, frame.file) for frame in within):
        return Seen("env-transport", _innermost(frames[:place], is_mine))
    return Seen("env-step", at)


def _innermost(frames: Sequence[Frame], is_mine: Mine) -> Frame | None:
    return next((frame for frame in reversed(frames) if not frame.mark and is_mine(frame.file)), None)
