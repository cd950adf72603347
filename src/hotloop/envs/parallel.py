"""PettingZoo's ParallelEnvs as envs on the host: N of them stepped in this process, one after the other.

Agents may be gone while others go on, and may come late. One env that raises is built anew; its episode is dropped
for all of its agents, and the other envs go on.
"""

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector.utils import concatenate, create_empty_array

from hotloop.envs.gym_types import Raw, Space
from hotloop.envs.host_spaces import HostSpaces, spaces_of
from hotloop.envs.misfits import refuse_misfit
from hotloop.envs.parallel_game import Game, Turn
from hotloop.envs.parallel_making import Make
from hotloop.envs.serial import FAILURES_IN_A_ROW, keeps_failing, raised_by, seed_of_rebuilt
from hotloop.envs.team import TeamArrays, TeamSpaces, TeamStep
from hotloop.errors import EnvFailed, NotFinite, SpecError, said
from hotloop.experience import VectorStep
from hotloop.trees import Arrays, leaves, tree_map, zeros_of


class ParallelTeam:
    """N ParallelEnvs in mid-episode (`envs.team.TeamEnvs`)."""

    def __init__(
        self, make: Make, num_envs: int, info_keys: tuple[str, ...] = (), observe: tuple[str, ...] = ()
    ) -> None:
        self._make, self.num_envs, self.info_keys = make, num_envs, info_keys
        self._games: list[Game] = []
        self.failures, self.last_failure, self._seed, self.goes_on = 0, "", 0, False
        self._in_a_row, self._is_closed = np.zeros(num_envs, np.int64), False
        try:
            for _ in range(num_envs):
                self._games.append(Game(make()))
            self.spaces = _spaces(self._games[0].env, observe)
        except BaseException:
            self.close()  # those that could be made
            raise
        self.fps: object = _metadata(self._games[0].env).get("render_fps")
        self.obs: list[Arrays] = []

    def reset(self, seed: int) -> list[Arrays]:
        """Begin an episode in every env; what each agent sees."""
        self._seed, self.goes_on = seed % (2**31 - self.num_envs), False
        for i in range(self.num_envs):
            self._begin(i, self._seed + i)
        self.obs = self._first()
        return self.obs

    def restart(self, which_N: np.ndarray) -> list[Arrays]:
        """Begin new episodes in some envs; what each agent sees in all of them."""
        for i in np.flatnonzero(which_N):
            self._begin(int(i), None)
        return self._first()

    def _first(self) -> list[Arrays]:
        return [
            self._rows(agent, {i: game.seen[name] for i, game in enumerate(self._games) if name in game.acting})
            for agent, name in enumerate(self.spaces.names)
        ]

    def step(self, chosen: Sequence[np.ndarray]) -> TeamStep:
        """Act in every env: actions (N,) of each agent, of which those of agents that are gone are left out."""
        actions = {
            name: spaces.actions.decode(chosen_N)
            for name, spaces, chosen_N in zip(self.spaces.names, self.spaces.each, chosen, strict=True)
        }
        turns = [self._turn(i, {name: actions[name][i] for name in game.acting}) for i, game in enumerate(self._games)]
        failed_N = np.array([turn is None for turn in turns])
        ended_N = ~failed_N & np.array([not game.acting for game in self._games])
        reached = [self._reached(agent, turns) for agent in range(len(self.spaces.names))]  # before a reset changes it
        for i in np.flatnonzero(ended_N):
            self._begin(int(i), None)
        steps = [
            self._step_of(agent, chosen_N, turns, final)
            for agent, (chosen_N, final) in enumerate(zip(chosen, reached, strict=True))
        ]
        return TeamStep([step._replace(failed=failed_N) for step in steps], ended_N, failed_N)

    def picture(self) -> np.ndarray | None:
        """What the first env looks like, (H, W, 3), if it was opened to be drawn."""
        drawn = self._games[0].env.render()
        return drawn if isinstance(drawn, np.ndarray) and drawn.ndim == 3 else None

    def close(self) -> None:
        """Let the envs go."""
        if self._is_closed:
            return
        self._is_closed = True
        for game in self._games:
            with contextlib.suppress(Exception):  # one that cannot be closed must not keep the others open
                game.env.close()

    # -- one env ---------------------------------------------------------------------------------------

    def _begin(self, i: int, seed: int | None) -> None:
        """Begin an episode in one env; one that raises is built anew."""
        try:
            given = self._games[i].env.reset(seed=seed)
        except Exception as error:  # whatever the user's own code raises
            self._rebuild(i, error)
            return
        self._games[i].begun(given, f"env {i}", self.spaces.names)

    def _turn(self, i: int, actions: dict[str, Raw]) -> Turn | None:
        """What one env returned; None if it raised and was built anew."""
        game = self._games[i]
        try:
            given = game.env.step(actions)
        except Exception as error:  # whatever the user's own code raises
            self._rebuild(i, error)
            return None
        self._in_a_row[i] = 0
        return game.moved(given, f"env {i}", self.spaces.names)

    def _rebuild(self, i: int, error: Exception) -> None:
        self.failures += 1
        self._in_a_row[i] += 1
        self.last_failure = raised_by(error)
        if self._in_a_row[i] >= FAILURES_IN_A_ROW:
            raise keeps_failing(i, error) from error
        with contextlib.suppress(Exception):  # it is broken already
            self._games[i].env.close()
        seed = seed_of_rebuilt(self._seed, i, self.failures)
        try:
            self._games[i] = Game(self._make())
        except Exception as again:
            self._rebuild(i, again)
            return
        self._begin(i, seed)

    # -- one agent -------------------------------------------------------------------------------------

    def _reached(self, agent: int, turns: Sequence[Turn | None]) -> Arrays:
        """The states that one agent's actions led to."""
        name = self.spaces.names[agent]
        return self._rows(agent, {i: t.obs[name] for i, t in enumerate(turns) if t is not None and name in t.acted})

    def _step_of(self, agent: int, chosen_N: np.ndarray, turns: Sequence[Turn | None], final: Arrays) -> VectorStep:
        name, count = self.spaces.names[agent], self.num_envs
        reward, info = np.zeros(count, np.float32), {key: np.full(count, np.nan) for key in self.info_keys}
        valid, terminated, truncated, began = (np.zeros(count, bool) for _ in range(4))
        first: dict[int, Raw] = {}  # observations with which an episode of this agent begins
        for i, (turn, game) in enumerate(zip(turns, self._games, strict=True)):
            if turn is not None and name in turn.acted:
                valid[i], reward[i] = True, _reward(turn.reward[name], f"env {i} gave {name}")
                terminated[i], truncated[i] = bool(turn.terminated[name]), bool(turn.truncated[name])
                for key in self.info_keys:
                    info[key][i] = _figure(key, turn.infos.get(name, {}), name, needed=terminated[i] or truncated[i])
            if name in game.joined:
                began[i], first[i] = True, game.seen[name]
        if not np.isfinite(reward).all():
            raise NotFinite(f"env {int(np.argmin(np.isfinite(reward)))} gave {name} a reward that is not finite")
        obs, over_N = final, (terminated | truncated) & ~began
        if first or over_N.any():
            fresh = self._rows(agent, first)
            rows_N = over_N | began
            obs = tree_map(lambda old, new: np.where(rows_N.reshape(-1, *[1] * (old.ndim - 1)), new, old), final, fresh)
        return VectorStep(obs, final, chosen_N, reward, terminated, truncated, valid, began, info=info)

    def _rows(self, agent: int, seen: Mapping[int, Raw]) -> Arrays:
        """Observations of one agent by env as arrays (N, …), zeros where there is none."""
        name, spaces = self.spaces.names[agent], self.spaces.each[agent]
        if not seen:
            return zeros_of(spaces.observations.shapes, (self.num_envs,))
        places, given = list(seen), list(seen.values())
        try:
            found = spaces.observations.encode(_stacked(spaces.observation, given))
            are_right = all(
                leaf.shape == (len(given), *shape.shape)
                for leaf, shape in zip(leaves(found), leaves(spaces.observations.shapes), strict=True)
            )
        except Exception as error:  # whatever can be wrong with what they gave
            _refuse_misfits(spaces, given, places, name)
            raise EnvFailed(f"what the env gave {name} to see cannot be read: {said(error)}") from error
        if not are_right:
            _refuse_misfits(spaces, given, places, name)
        for leaf in leaves(found):
            if leaf.dtype == np.float32 and not np.isfinite(leaf).all():
                bad = int(np.argmin(np.isfinite(leaf.reshape(len(given), -1)).all(axis=1)))
                raise NotFinite(f"env {places[bad]} gave {name} an observation that is not finite")
        if len(given) == self.num_envs:
            return found
        rows = zeros_of(spaces.observations.shapes, (self.num_envs,))
        tree_map(lambda kept, new: kept.__setitem__(places, new), rows, found)
        return rows

    # -- saving ----------------------------------------------------------------------------------------

    def arrays(self) -> TeamArrays:
        """All of the envs' state if they offer it (`get_state`, `set_state`, as in `envs/host.py`), else nothing.

        A wrapper around them may have a state that nobody can save.
        """
        parts = [game.env for game in self._games]
        if not all(callable(getattr(part, name, None)) for part in parts for name in ("get_state", "set_state")):
            return {}
        if any(part is not part.unwrapped for part in parts):
            return {}
        states = {str(i): tree_map(np.asarray, part.get_state()) for i, part in enumerate(parts)}
        if not all(leaf.dtype.kind in "biuf" for leaf in leaves(states)):
            return {}
        acting = np.array([[name in game.acting for name in self.spaces.names] for game in self._games])
        left = np.array([[name in game.left for name in self.spaces.names] for game in self._games])
        return {"state": states, "acting": acting, "left": left}

    def restore(self, arrays: TeamArrays) -> bool:
        """Take back what `arrays` gave, after a reset; returns whether the episodes go on where they were."""
        self.goes_on = "state" in arrays
        if self.goes_on:
            for i, game in enumerate(self._games):
                game.env.set_state(arrays["state"][str(i)])
                game.acting, left = (
                    [name for name, is_one in zip(self.spaces.names, which[i], strict=True) if is_one]
                    for which in (arrays["acting"], arrays["left"])
                )
                game.left = set(left)
        return self.goes_on


def _spaces(env: Raw, observe: tuple[str, ...]) -> TeamSpaces:
    names = tuple(env.possible_agents)
    if not names or not all(isinstance(name, str) for name in names):
        raise SpecError(f"the env's possible_agents are {list(names)!r}, expected names of at least one agent")
    draws = "rgb_array" in (_metadata(env).get("render_modes") or ())
    each = []
    for name in names:
        try:
            each.append(spaces_of(env.observation_space(name), env.action_space(name), observe, draws=draws))
        except SpecError as error:
            raise SpecError(f"agent {name}: {error}") from None
        except Exception as error:  # whatever the user's own code raises
            raise SpecError(f"agent {name}: its spaces cannot be read: {said(error)}") from error
    return TeamSpaces(names, tuple(each), draws)


def _metadata(env: Raw) -> Mapping[str, Raw]:
    return getattr(env, "metadata", None) or {}  # PettingZoo asks for them, and gives no default


def _stacked(space: Space, given: list[Raw]) -> Raw:
    if isinstance(space, Box):
        return np.stack([np.asarray(one) for one in given])
    return concatenate(space, given, create_empty_array(space, len(given)))


def _refuse_misfits(spaces: HostSpaces, given: list[Raw], places: list[int], name: str) -> None:
    for place, one in zip(places, given, strict=True):
        refuse_misfit(spaces.observation, one, f"env {place}, agent {name},")


def _reward(given: Raw, whose: str) -> float:
    try:
        return float(given)
    except (TypeError, ValueError):
        raise EnvFailed(f"{whose} a reward that is {str(given)[:40]}, expected a number") from None


def _figure(key: str, info: Mapping[str, Raw], name: str, *, needed: bool) -> float:
    """One key of an agent's `info`; where its episode ended it must be there."""
    if key not in info:
        if needed:
            known = sorted(map(str, info))
            raise SpecError(f"env.info: the env gave {name} no '{key}' at the end of its episode; it gave {known}")
        return np.nan
    try:
        return float(info[key])
    except (TypeError, ValueError):
        raise SpecError(f"env.info: '{key}' is not a number") from None
