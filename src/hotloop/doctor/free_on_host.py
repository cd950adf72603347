"""A stage of a run on the host that costs nothing for a while: the speed that is left is that of all the others.

| stage | what stands in for it |
|---|---|
| step | vector steps recorded before, in turn, whatever is done; each round of them ends in new episodes |
| select | random actions among the legal ones, the network is not asked |
| insert | nothing is stored |
| sample | the batches that were drawn last, again; priorities stay |
| transfer | the batches that are on the device already |
| update | weights stay as they are, for acting too; all errors are zero |

Nothing is compiled anew and nothing moves, so a stage can be free for a tenth of a second, and the run as it is for the
next: what the machine does meanwhile happens to both. What the run has learned is worth nothing afterwards.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np

from hotloop.engines.protocol import Learned, State, Weights
from hotloop.envs.host import EnvArrays
from hotloop.envs.random_actions import random_actions
from hotloop.experience import METRICS, Items, VectorStep
from hotloop.pipelines.actor import Actor, Envs
from hotloop.pipelines.host_run import HostRun
from hotloop.pipelines.learner import Period, Portion
from hotloop.pipelines.learning_run import LearningRun
from hotloop.replay.host import Batches
from hotloop.trees import Arrays, Form, HasShape, leaves, tree_map

RECORDED = 32
"""Vector steps."""
Change = Callable[[], AbstractContextManager[None]]
There = tuple[Items, np.ndarray | None]
"""Batches and their weights, on the device."""


class Recording:
    """Envs that are stepped as ever, and what they did."""

    def __init__(self, envs: Envs, obs: Arrays) -> None:
        """`obs` is what they show now."""
        self.envs, self.first = envs, copied(obs)
        self.legal_at_first = None if envs.legal is None else envs.legal.copy()
        self.steps: list[VectorStep] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.envs, name)

    def step(self, chosen_N: np.ndarray) -> VectorStep:
        """Act in every env."""
        step = self.envs.step(chosen_N)
        if len(self.steps) < RECORDED:
            self.steps.append(copied(step))
        return step


class Recorded:
    """`Envs` that only seem to step: what they show was recorded."""

    def __init__(self, recording: Recording) -> None:
        envs, *before, last = recording.envs, *recording.steps
        self.num_envs, self.observations, self.actions = envs.num_envs, envs.observations, envs.actions
        self.failures, self.last_failure = envs.failures, envs.last_failure
        self.first, self.legal, self._legal_at_first = recording.first, *[recording.legal_at_first] * 2
        goes_on = last.valid & ~last.terminated
        ended = last._replace(
            obs=recording.first, truncated=goes_on, began=np.ones_like(last.began), legal=recording.legal_at_first
        )
        self._steps, self._turn = [*before, ended], 0

    def step(self, chosen_N: np.ndarray) -> VectorStep:
        """The next of the recorded ones, with the actions that were chosen now."""
        step = self._steps[self._turn]
        self._turn = (self._turn + 1) % len(self._steps)
        self.legal = step.legal
        return step._replace(action=chosen_N)

    def reset(self, seed: int) -> Arrays:
        """At the first of the recorded steps."""
        del seed
        self._turn, self.legal = 0, self._legal_at_first
        return self.first

    def arrays(self) -> EnvArrays:
        """Nothing of it is kept."""
        return {}

    def restore(self, arrays: EnvArrays) -> bool:
        """Nothing was kept."""
        return False

    def close(self) -> None:
        """There is nothing to let go."""


class RandomActions:
    """In the place of an `Explorer`: its network is not asked."""

    def __init__(self, num_actions: int) -> None:
        self._num_actions = num_actions

    def actions(
        self, policy: object, obs_N: Arrays, legal_NA: np.ndarray | None, env_steps: int, random: np.random.Generator
    ) -> np.ndarray:
        """An action of each env, int32 (N,)."""
        del policy, env_steps
        return random_actions(self._num_actions, len(leaves(obs_N)[0]), legal_NA, random)


class FreeLearner:
    """The stages of a learner that can be free, wherever its experience is made; it must have learned already."""

    def __init__(self, run: LearningRun) -> None:
        self._run, self._learner = run, run.learner
        self._drawn: Portion | None = None
        self._there: There | None = None
        self.stages: dict[str, Change] = {"sample": self._same_batches, "update": self._same_weights}
        if self._learner.transfers_apart:
            self.stages["transfer"] = self._already_there

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Within, the run goes on as it is and what will stand in is kept: let it run for some blocks."""
        learner = self._learner
        draw, to_device = learner.draw_portion, learner.to_device

        def remember_draw(portion: int, period: Period) -> Portion:
            self._drawn = draw(portion, period)
            return self._drawn

        def remember_there(items: Items, weight: np.ndarray | None) -> There:
            self._there = to_device(items, weight)
            return self._there

        with (
            in_place_of(learner, "draw_portion", remember_draw),
            in_place_of(learner, "to_device", remember_there),
        ):
            yield

    @property
    def is_prepared(self) -> bool:
        """Whether all that will stand in was seen."""
        return self._drawn is not None and (self._there is not None or not self._learner.transfers_apart)

    @contextmanager
    def _same_batches(self) -> Iterator[None]:
        assert self._drawn is not None
        drawn = self._drawn

        def again(portion: int, period: Period) -> Portion:
            del portion
            return drawn._replace(period=period)

        def stay(batches: Batches, td_KB: np.ndarray) -> None:
            del batches, td_KB

        learner = self._learner
        with in_place_of(learner, "draw_portion", again), in_place_of(learner.replay, "learned", stay):
            yield

    @contextmanager
    def _already_there(self) -> Iterator[None]:
        def already(items: Items, weight: np.ndarray | None) -> There:
            del items, weight
            assert self._there is not None
            return self._there

        with in_place_of(self._learner, "to_device", already):
            yield

    @contextmanager
    def _same_weights(self) -> Iterator[None]:
        with ExitStack() as replaced:
            replaced.enter_context(in_place_of(self._learner, "update", no_update(self._run.spec.updates_per_draw)))
            if isinstance(self._run, HostRun):  # elsewhere weights are handed over by a stage of their own
                replaced.enter_context(in_place_of(self._run, "act_with", _go_on_acting))
            yield


class FreeOnHost(FreeLearner):
    """The stages of a run that can be free: those of its actor, too."""

    def __init__(self, run: HostRun) -> None:
        super().__init__(run)
        actor = FreeActor(run)
        of_actor = {"step": actor.recorded_steps, "select": actor.random_actions, "insert": actor.nothing_stored}
        self.stages = {**of_actor, **self.stages}


class FreeActor:
    """Those of the actor of a run in this process."""

    def __init__(self, run: HostRun) -> None:
        self._run, self._actor = run, run.actor
        self._recorded: Recorded | None = None

    @contextmanager
    def recorded_steps(self) -> Iterator[None]:
        """The envs stand still."""
        actor = self._actor
        if self._recorded is None:
            self._recorded = self._record()
        recorded, stands_at = self._recorded, actor.obs
        self.begin_at(recorded.reset(0))
        try:
            with in_place_of(actor, "envs", recorded):
                yield
        finally:
            self.begin_at(stands_at)

    def _record(self) -> Recorded:
        """Let the envs take as many steps as are recorded."""
        recording = Recording(self._actor.envs, self._actor.obs)
        with in_place_of(self._actor, "envs", recording):
            while len(recording.steps) < RECORDED:
                self._run.advance(1)
        return Recorded(recording)

    @contextmanager
    def random_actions(self) -> Iterator[None]:
        """The network is not asked."""
        with in_place_of(self._actor, "explorer", RandomActions(self._actor.envs.actions.size)):
            yield

    @contextmanager
    def nothing_stored(self) -> Iterator[None]:
        """What the envs do is forgotten."""
        try:
            with in_place_of(self._run.learner, "insert", _forget):
                yield
        finally:
            self.begin_at(self._actor.obs)

    def begin_at(self, obs: Arrays) -> None:
        """Episodes begin here for all who remember how they went."""
        _begin_episodes(self._actor, obs)
        self._run.learner.replay.begin(obs)


def _go_on_acting(weights: Weights) -> None:
    """The weights that acted before are these."""
    del weights


def no_update(updates: int) -> Callable[..., Learned[State]]:
    """Stands in for `Learner.update`: as if so many gradient steps were taken, and nothing had come of them."""

    def stay(state: State, items_KB: Items, *more: object) -> Learned[State]:
        del more
        td_KB = np.zeros(_shape(items_KB.r_t), np.float32)
        sums = np.zeros(len(METRICS), np.float32)
        sums[METRICS.index("applied")] = updates
        return Learned(state, td_KB, sums)

    return stay


def _begin_episodes(actor: Actor, obs: Arrays) -> None:
    actor.obs, actor.is_torn = obs, False
    actor.running.begin_anew(np.ones(actor.envs.num_envs, bool))


def _forget(step: VectorStep) -> None:
    del step


def copied(arrays: Form) -> Form:
    """Arrays of one's own."""
    own: Form = tree_map(np.array, arrays)
    return own


def _shape(leaf: object) -> tuple[int, ...]:
    assert isinstance(leaf, HasShape)
    return tuple(leaf.shape)


@contextmanager
def in_place_of(owner: object, name: str, stand_in: object) -> Iterator[None]:
    """Within, an attribute of an object is another one."""
    own = vars(owner).get(name)
    setattr(owner, name, stand_in)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)  # a method of its class is seen again
        else:
            setattr(owner, name, own)
