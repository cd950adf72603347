"""Several agents whose envs are in processes of their own: a learner for each here, one supply of parcels for all.

As `process_run.py`, but that a parcel has a part for each learner, and that weights of all are published together.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypedDict, cast

import numpy as np

from hotloop.engines.protocol import Engine, Weights
from hotloop.envs.gym_types import Make
from hotloop.envs.host_spaces import HostSpaces
from hotloop.envs.team import TeamSpaces, agents_of_learners
from hotloop.evaluate import Episodes, Tell
from hotloop.members import Members, seeds
from hotloop.pipelines.actor_parcels import room_of
from hotloop.pipelines.crews import AnyCrew, Brought, Seats, crew_of
from hotloop.pipelines.learning_run import EPISODES_LOST, STAGES
from hotloop.pipelines.parcel_learner import ParcelLearner, of_no_actor
from hotloop.pipelines.processes import (
    ActorsPipeline,
    actors_of,
    exchange_form,
    parcel_of,
    refuse_what_cannot_be,
    replay_of,
    weights_of,
)
from hotloop.pipelines.supply import Supply
from hotloop.pipelines.sync import learn_if_due
from hotloop.pipelines.team_names import TEAM, learner_name
from hotloop.pipelines.team_run import TeamRun
from hotloop.plain import Figures
from hotloop.replay.host import HostReplay
from hotloop.replay.parcels import Account, TeamParcel, account_form
from hotloop.runs.state import from_arrays, to_arrays
from hotloop.spans import Spans
from hotloop.spec import Spec
from hotloop.transport.exchange import Exchange
from hotloop.trees import Arrays, ArraySpec, Specs


class Taught(NamedTuple):
    """What a learner is made of."""

    engine: Engine
    replay: HostReplay
    spaces: HostSpaces
    rows: int
    """Observations that an actor acts on at a time, at most."""


class ProcessTeamPipeline(ActorsPipeline):
    """Shapes and sizes; processes are started by a session."""

    def __init__(
        self, spec: Spec, spaces: TeamSpaces, engines: Sequence[Engine], make: Make | None, network: object
    ) -> None:
        """`make` and `network` are what the user brought along, if anything."""
        refuse_what_cannot_be(spec)
        self.spaces = spaces
        room, self.learners, parcels = room_of(spec, actors_of(spec)), list[Taught](), []
        weights: dict[str, ArraySpec] = {}
        for index, (agents, engine) in enumerate(zip(agents_of_learners(spaces, spec), engines, strict=True)):
            of_agents, rows = spaces.each[agents[0]], room * len(agents)
            replay = replay_of(spec, of_agents)
            parcels.append(parcel_of(spec, of_agents, replay, rows))
            weights |= {f"{learner_name(index)}/{name}": form for name, form in weights_of(engine).items()}
            self.learners.append(Taught(engine, replay, of_agents, rows))
        form = exchange_form(spec, cast(Specs, TeamParcel(account_form(), tuple(parcels))), weights)
        super().__init__(spec, form, Brought(make, network))

    @property
    def replay(self) -> HostReplay:
        """That of the learner whose observations are the largest."""
        return max((learner.replay for learner in self.learners), key=lambda replay: replay.row_bytes)

    def num_bytes(self) -> int:
        """Memory of that one."""
        return self.replay.num_bytes()

    def session(self, members: Members) -> "ProcessTeam":
        """Its state, for the host loop to drive."""
        made = ProcessTeam(self, members, self.brought)
        self.supplies.append(made.supply)
        return made


class Pupil(ParcelLearner):
    """One learner of a team whose actors are elsewhere."""

    def __init__(self, spec: Spec, taught: Taught, seed: int, spans: Spans, supply: Supply) -> None:
        engine, obs = taught.engine, taught.spaces.observations.shapes
        super().__init__(spec, engine, taught.replay, engine.update, seeds([seed]), spans, obs, taught.rows)
        self.supply = supply

    def run_block(self) -> bool:
        """The gradient steps that are due."""
        learn_if_due(self)
        return True

    def act_with(self, weights: Weights) -> None:
        """Nothing: those of all learners are published together."""


class SavedTeam(TypedDict):
    """What a checkpoint holds beside the learners."""

    episodes: np.ndarray
    blocks: np.ndarray
    waiting: np.ndarray
    transitions_waiting: np.ndarray
    inserted: np.ndarray


class ProcessTeam(TeamRun[Pupil]):
    """The learners of a team, and actors elsewhere."""

    def __init__(self, pipeline: ProcessTeamPipeline, members: Members, brought: Brought) -> None:
        super().__init__(pipeline.spec, pipeline.spaces, members, Spans(*STAGES, "wait", "publish"))
        self._brought = brought
        self.supply = Supply(self.spec, pipeline.form, self.spans, self)
        pairs = zip(pipeline.learners, self.seeds, strict=True)
        self.runs = [Pupil(self.spec, taught, seed, self.spans, self.supply) for taught, seed in pairs]

    def begin(self) -> None:
        """Fresh weights, empty replays, actors that begin."""
        self._begin_learning()
        self.supply.begin()
        self.forget_totals()

    def _begin_learning(self) -> None:
        self.episodes = self.blocks = 0
        self._waiting = np.zeros(len(self.runs), np.int64)  # transitions of each learner, of turns not counted yet
        for run in self.runs:
            run.begin_learning()
            run.count_skipped()

    def run_block(self) -> bool:
        """The gradient steps that a block's worth of turns has earned each learner, once there are as many."""
        made = self.supply.block()
        if made is None:
            return False
        earned = np.minimum(self._waiting, made)
        self._waiting -= earned
        for run in self.runs:
            run.env_steps += made
        before = [run.learner.turns for run in self.runs]
        self.learn([made] * len(self.runs) if self.spec.has_shared_weights else earned.tolist())
        if before != [run.learner.turns for run in self.runs]:
            self.supply.renew_weights()
        self.supply.go_on()
        return True

    # -- what actors need of it -------------------------------------------------------------------------

    def named_weights(self) -> dict[str, np.ndarray]:
        """What actors are to act with, of each learner below its name."""
        named: dict[str, np.ndarray] = {}
        for name, run in zip(self.names, self.runs, strict=True):
            weights = run.engine.to_named(run.engine.weights(run.learner.state))
            named |= {f"{name}/{path}": array for path, array in weights.items()}
        return named

    def new_crew(self, exchange: Exchange) -> AnyCrew:
        """Actors that take part in an exchange."""
        seats = Seats(exchange, self.spec.seed, self.blocks, self.seeds)
        in_numpy = [run.acts_with == "NumPy" for run in self.runs]
        return crew_of(self.spec, seats, self._brought, [run.engine for run in self.runs], in_numpy)

    def store(self, parcel: Arrays) -> Account[np.ndarray]:
        """Put each learner's part of a parcel into its replay."""
        team = cast(TeamParcel[np.ndarray], parcel)
        for index, (run, packed) in enumerate(zip(self.runs, team.each, strict=True)):
            run.take_in(packed)
            self._waiting[index] += int(packed.account.env_steps)
        self.episodes += int(team.account.episodes)
        return team.account

    # -- what the host loop asks for --------------------------------------------------------------------

    def evaluate(self, tell: Tell | None = None, attempt: int = 0) -> list[Episodes]:
        """Greedy episodes that all agents play together, on envs of their own, in this process."""
        for run in self.runs:
            run.play_with_learner()
        return super().evaluate(tell, attempt)

    def notices(self) -> list[str]:
        """Envs that raised, and actors that were replaced."""
        return [*super().notices(), *self.supply.notices()]

    def own_figures(self) -> Figures:
        """Beside the usual what the actors did since this was last asked."""
        ratio = float(np.mean([run.samples_per_insert() for run in self.runs]))
        of_actors = self.supply.figures()
        return {**super().own_figures(), **({"samples_per_insert": ratio, **of_actors} if of_actors else {})}

    def close(self) -> None:
        """Stop the actors, and let go of what was shared with them."""
        self.supply.close()

    # -- checkpoints ------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """All learners, replays and counters; actors begin anew after a resume."""
        saved = to_arrays({TEAM: self._saved()})
        for name, run in zip(self.names, self.runs, strict=True):
            parts = to_arrays(run.learner_parts(of_no_actor()))
            saved |= {f"{name}/{path}": array for path, array in parts.items()}
        return saved

    def _saved(self) -> SavedTeam:
        return {
            "episodes": np.asarray(self.episodes),
            "blocks": np.asarray(self.blocks),
            "waiting": np.asarray(self.supply.waiting, np.int64),
            "transitions_waiting": self._waiting,
            "inserted": np.array([run.inserted for run in self.runs], np.int64),
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> list[str]:
        """Take back what `arrays` gave; returns what could not be restored, in words."""
        self.supply.close()
        self.supply.forget_failures()
        self._begin_learning()
        self.forget_totals()
        parts = self.parts(arrays)
        of_team = {path: array for path, array in arrays.items() if path.startswith(f"{TEAM}/")}
        saved: SavedTeam = from_arrays({TEAM: self._saved()}, of_team)[TEAM]
        self.episodes, self.blocks = int(saved["episodes"]), int(saved["blocks"])
        each = [run.restore_learner(part, of_no_actor()) for run, part in zip(self.runs, parts, strict=True)]
        for run, inserted in zip(self.runs, saved["inserted"], strict=True):
            run.count_skipped()
            run.inserted = int(inserted)
        self.supply.begin()
        lost = [EPISODES_LOST]
        if all(restored.has_replay for restored in each):
            self.supply.waiting, self._waiting = int(saved["waiting"]), np.array(saved["transitions_waiting"])
        else:
            lost += [run.begin_without_replay() for run in self.runs]
        for run, restored in zip(self.runs, each, strict=True):
            run.totals = restored.totals
        return list(dict.fromkeys(lost))
