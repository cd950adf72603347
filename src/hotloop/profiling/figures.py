"""What profiles say, by name: plain data, as `profile.json` holds it."""

from typing import NotRequired, TypedDict, cast, final

from hotloop.plain import Figures


class Stage(TypedDict):
    """A stage of a block, or a part of one."""

    stage: str
    us_per_block: float
    us_per_env_step: float
    share: float


class Stretch(TypedDict):
    """A stretch of training; the last of its figures are None where no episode ended in it."""

    env_steps: float
    us_per_step: float
    env_steps_per_s: float
    episodes: float
    steps_per_episode: float | None
    ms_per_episode: float | None


class Block(TypedDict):
    """The unit of work."""

    env_steps: int
    vector_steps: int
    updates: int


class Episodes(TypedDict):
    """How far the run went, and in how many episodes."""

    env_steps: float
    episodes: float
    steps_per_episode: float | None


class QLoss(TypedDict):
    """Of one gradient step."""

    calls: float
    mean_ms: float
    mean_ms_with_gradient_and_step: float


class OfTheRun(TypedDict):
    """What every profile says of the run it is of."""

    block: Block
    env_steps_per_s: float
    updates_per_s: float
    episodes: Episodes


class Profile(OfTheRun):
    """What every profile says."""

    stages: list[Stage]
    parts: list[Stage]
    course: list[Stretch]
    says: list[str]


@final
class HostProfile(Profile):
    """Of a run whose stages are on the host."""

    pipeline: str
    whole_us: float
    outside_env_and_update: float


@final
class FusedProfile(Profile):
    """Of a run that is one program on the device."""

    sum_of_stages_us: float
    update_us: float
    fused_us: float
    sum_over_fused: float
    q_loss: QLoss
    machine: NotRequired[dict[str, str]]


AnyProfile = HostProfile | FusedProfile


class Function(TypedDict):
    """A Python function of an env."""

    function: str
    yours: bool
    calls_per_step: float
    own_us_per_step: float
    with_callees_us_per_step: float
    share: float


class Line(TypedDict):
    """A line of a Python function of an env; its share is of the env's time."""

    file: str
    line: int
    function: str
    share: float
    text: str


class EnvProfile(TypedDict):
    """Where the time of an env's steps goes."""

    env: str
    us_per_step: float
    steps_per_s: float
    us_per_step_while_profiled: float
    functions: list[Function]
    lines: list[Line]
    """Of the functions of the user's own that take most; none where they take little."""
    rendering: float
    """Share of functions that draw, with all that they call."""


def per_episode(part: Stretch) -> tuple[float, float] | None:
    """Steps and milliseconds of an episode; None where none ended."""
    steps, milliseconds = part["steps_per_episode"], part["ms_per_episode"]
    return (steps, milliseconds) if steps and milliseconds is not None else None


def as_figures(found: AnyProfile | EnvProfile) -> Figures:
    """The very same, for whoever writes or tells plain data."""
    return cast(Figures, found)
