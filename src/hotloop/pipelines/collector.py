"""What an actor steps and packs: envs, and for each learner that it acts for, a policy and a packer.

`Collector` has envs with one agent, `TeamCollector` envs with several (`envs/team.py`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np

from hotloop.envs.host import HostEnvs
from hotloop.envs.team import Rows, TeamEnvs, agents_of_learners
from hotloop.pipelines.actor import Actor, Envs
from hotloop.pipelines.actor_parcels import room_of, steps_per_parcel, steps_that_begin
from hotloop.pipelines.explorer import Explorer
from hotloop.pipelines.first_errors import are_told, first_errors
from hotloop.pipelines.team_names import below, learner_name
from hotloop.pipelines.ways_to_act import Way
from hotloop.replay.packer import Packer
from hotloop.replay.parcels import Account, Packed, TeamParcel, account_form, rows_used
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.trees import Arrays, Specs, leaves, zeros_of


class Handed(NamedTuple):
    """A parcel that is to be handed over."""

    arrays: Arrays
    rows: list[int]
    """For each array, how many of its leading rows are used."""
    env_steps: int


class Collects(Protocol):
    """What is asked of whoever steps envs and packs what they do."""

    num_envs: int

    @property
    def envs(self) -> HostEnvs | TeamEnvs:
        """Those that it steps."""

    def begin(self, streams: Sequence[np.random.Generator], seed: int) -> None:
        """Begin an episode in every env; each learner's share has a random stream of its own."""

    def act_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Act with these from now on."""

    def prepare(self) -> None:
        """Do once what a turn takes of the policy, so that it is compiled; nothing else comes of it."""

    def choose(self, env_steps: int) -> list[np.ndarray]:
        """Actions for all envs, which are about to take them."""

    def step(self, actions: list[np.ndarray]) -> int:
        """Act in every env and pack what comes of it; returns the env steps that were made."""

    @property
    def is_full(self) -> bool:
        """Whether the parcel is to be taken before the next step."""

    def take(self, weights_version: int, dropped: int) -> Handed:
        """What was packed; `dropped` transitions were given up before it."""


class Share:
    """What of an actor is for one learner: how it acts, and what it packs."""

    def __init__(self, spec: Spec, envs: Envs, way: Way, power: float, room: int, made_before: int = 0) -> None:
        """`room` is for so many envs in a parcel, `power` that to which ε is raised."""
        self.actor = Actor(envs, Explorer(spec, way.wanted(envs.num_envs), power), Spans("select", "step"))
        self._freeze, self._tells_errors = way.freeze, are_told(spec)
        self.packer = Packer(
            spec.replay,
            spec.discount,
            envs.observations.shapes,
            envs.num_envs,
            steps_per_parcel(spec),
            envs.actions.size if spec.env.action_mask else None,
            spec.env.info,
            room_for=room,
            steps_that_begin=steps_that_begin(spec),
            env_steps_before=made_before,
            discount_per=spec.discount_per,
        )

    def begin(self, stream: np.random.Generator, seed: int) -> None:
        """Begin an episode in every env."""
        self.actor.random = stream
        self.packer.begin(self.actor.begin(seed))

    def act_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Act with these from now on."""
        self.actor.policy = self._freeze(weights)

    def prepare(self) -> None:
        """Act on what the envs show, and tell the errors of a parcel, both in vain."""
        actor = self.actor
        actor.explorer.q_values(actor.policy, actor.obs, np.random.default_rng(0))
        if self._tells_errors:
            parcel = self.packer.new_parcel()
            parcel.num_frames[...] = parcel.num_rows[...] = 1
            first_errors(actor.policy, parcel)

    def take(self, weights_version: int) -> Packed:
        """What was packed."""
        parcel = self.packer.take(weights_version)
        if self._tells_errors:
            parcel.error[: int(parcel.num_rows)] = first_errors(self.actor.policy, parcel)
        return parcel


class Collector:
    """Envs with one agent."""

    def __init__(self, spec: Spec, envs: HostEnvs, way: Way, power: float, actors: int, made_before: int) -> None:
        self.envs, self.num_envs = envs, envs.num_envs
        self.share = Share(spec, envs, way, power, room_of(spec, actors), made_before)

    def begin(self, streams: Sequence[np.random.Generator], seed: int) -> None:
        """Begin an episode in every env."""
        (stream,) = streams
        self.share.begin(stream, seed)

    def act_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Act with these from now on."""
        self.share.act_with(weights)

    def prepare(self) -> None:
        """Do once what a turn takes of the policy."""
        self.share.prepare()

    def choose(self, env_steps: int) -> list[np.ndarray]:
        """Actions for all envs."""
        return [self.share.actor.choose(env_steps)]

    def step(self, actions: list[np.ndarray]) -> int:
        """Act in every env and pack what comes of it."""
        step = self.envs.step(actions[0])
        self.share.packer.push(step, self.share.actor.stored(step))
        return int(np.count_nonzero(step.valid))

    @property
    def is_full(self) -> bool:
        """Whether the parcel is to be taken before the next step."""
        return self.share.packer.is_full

    def take(self, weights_version: int, dropped: int) -> Handed:
        """What was packed."""
        parcel = self.share.take(weights_version)
        parcel.account.dropped[...] = dropped
        return Handed(cast(Arrays, parcel), rows_used(parcel), int(parcel.account.env_steps))


class TeamCollector:
    """Envs with several agents: a share for each learner, and an account of turns for all."""

    def __init__(
        self, spec: Spec, envs: TeamEnvs, ways: Sequence[Way], power: float, actors: int, made_before: int
    ) -> None:
        self.envs, self.num_envs = envs, envs.num_envs
        self.rows = [Rows(envs, agents) for agents in agents_of_learners(envs.spaces, spec)]
        room = room_of(spec, actors)
        self.shares = [
            Share(spec, rows, way, power, room * len(rows.agents)) for rows, way in zip(self.rows, ways, strict=True)
        ]
        self._account = cast(Account[np.ndarray], zeros_of(cast(Specs, account_form()), ()))
        self._made, self._ended, self._before = 0, 0, made_before

    def begin(self, streams: Sequence[np.random.Generator], seed: int) -> None:
        """Begin an episode in every env."""
        self.envs.reset(seed)
        for share, stream in zip(self.shares, streams, strict=True):
            share.begin(stream, seed)

    def act_with(self, weights: Mapping[str, np.ndarray]) -> None:
        """Act with these from now on: those of each learner, below its name."""
        for index, share in enumerate(self.shares):
            share.act_with(below(learner_name(index), weights))

    def prepare(self) -> None:
        """Do once what a turn takes of each learner's policy."""
        for share in self.shares:
            share.prepare()

    def choose(self, env_steps: int) -> list[np.ndarray]:
        """Actions of each agent in all envs."""
        chosen = [share.actor.choose(env_steps) for share in self.shares]
        return [action_N for rows, chosen_R in zip(self.rows, chosen, strict=True) for action_N in rows.apart(chosen_R)]

    def step(self, actions: list[np.ndarray]) -> int:
        """Act in every env and pack for each learner what its agents did; returns turns."""
        turn = self.envs.step(actions)
        for share, rows in zip(self.shares, self.rows, strict=True):
            step = rows.share(turn)
            share.packer.push(step, share.actor.stored(step))
        turns = int(np.count_nonzero(~turn.failed))
        self._made, self._ended = self._made + turns, self._ended + int(np.count_nonzero(turn.ended))
        return turns

    @property
    def is_full(self) -> bool:
        """Whether the parcel is to be taken before the next step."""
        return any(share.packer.is_full for share in self.shares)

    def take(self, weights_version: int, dropped: int) -> Handed:
        """What was packed for each learner, and an account of the turns."""
        each, account, made = tuple(share.take(weights_version) for share in self.shares), self._account, self._made
        account.env_steps_before[...], account.env_steps[...] = self._before, made
        account.dropped[...], account.episodes[...] = dropped, self._ended
        account.weights_version[...] = weights_version
        self._before, self._made, self._ended = self._before + made, 0, 0
        rows = [1] * len(leaves(account)) + [count for parcel in each for count in rows_used(parcel)]
        return Handed(cast(Arrays, TeamParcel(account, each)), rows, made)
