"""The device env of service function chains, which computes on arrays, against one that goes request by request."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_sfc import BUNDLE, CHAINS, LIMIT_MS, MICROSECONDS, SERVICES, VNFS, WAIT, NaiveSfc, Request

from hotloop.envs.device import make_env
from hotloop.envs.sfc import Sfc
from hotloop.envs.sfc_state import SfcState, used_kbps
from hotloop.errors import SpecError

pytestmark = pytest.mark.less_optimised


class Case(NamedTuple):
    """How many decisions are taken, and by which rules."""

    env: Sfc
    decisions: int


CASES = [
    Case(Sfc(dcs=2, steps=120), 600),
    Case(Sfc(steps=30, arrival_every=3), 400),  # any number of DCs
    Case(Sfc(dcs=4, steps=12, actions_per_step=7, arrival_every=2), 200),
    Case(Sfc(dcs=8, steps=5, actions_per_step=40, full_steps=True), 300),
]
HEAVY = [Case(Sfc(dcs=dcs, steps=110), 1200) for dcs in (3, 6, 8)]
STYLES = ("careless", "legal", "allocates", "makes room")
PARAMS = [*CASES, *(pytest.param(case, marks=pytest.mark.heavy) for case in HEAVY)]


class Moves(NamedTuple):
    """What happened, decision by decision: leading axes decisions, envs; `begun`: what would follow an end."""

    action: Any
    after: SfcState
    begun: SfcState
    obs: Any
    mask: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any


class Games(NamedTuple):
    """Episodes of the device env, one env per style, and the same ones played naively."""

    env: Sfc
    moves: Moves
    naive: dict[str, np.ndarray]
    events: Counter[str]


@cache
def games_of(case: Case) -> Games:
    env = case.env
    keys = jax.random.split(jax.random.key(case.decisions), len(STYLES))

    def choose(mask: jax.Array, style: jax.Array, key: jax.Array) -> jax.Array:
        taste = jax.random.uniform(key, (env.num_actions,))
        each = jnp.arange(env.num_actions)
        kind = jnp.where(each < 6, 0, jnp.where(each < WAIT, 1, 2))
        likes = jnp.asarray([[0, 0, 0], [0, 0, 0], [-1.0, 2.0, 1.0], [0.05, 2.0, 1.0]])[style][kind]
        return jnp.argmax(taste * (1 + 0.02 * (kind == 0)) + likes + jnp.where(mask | (style == 0), 0, -9))

    def one(carry: Any, t: jax.Array) -> Any:
        state, style, key = carry
        choose_key, step_key, reset_key, luck_key = jax.random.split(jax.random.fold_in(key, t), 4)
        action = choose(env.action_mask(state), style, choose_key)
        # One that makes room uninstalls now and then, whatever else it could do.
        clears = (style == 3) & (jax.random.uniform(luck_key) < 0.1)
        action = jnp.where(clears, jnp.argmax(env.action_mask(state)), action)
        after, obs, reward, terminated, truncated, info = env.step(state, action, step_key)
        begun = env.reset(reset_key)[0]
        onward = jax.tree.map(lambda new, old: jnp.where(truncated, new, old), begun, after)
        moves = Moves(action, after, begun, obs, env.action_mask(after), reward, terminated, truncated, info)
        return (onward, style, key), moves

    @jax.jit
    def play(keys: jax.Array) -> Any:
        def of(key: jax.Array, style: jax.Array) -> Any:
            state, obs = env.reset(key)
            first = (state, obs, env.action_mask(state))
            return first, jax.lax.scan(one, (state, style, key), jnp.arange(case.decisions))[1]

        return jax.vmap(of, out_axes=(0, 1))(keys, jnp.arange(len(STYLES)))

    first, moves = jax.device_get(play(keys))
    return _replayed(env, first, moves)


@pytest.fixture(params=PARAMS, ids=lambda case: f"{case.env.dcs}-{case.env.steps}")
def games(request: pytest.FixtureRequest) -> Games:
    return games_of(request.param)


def test_every_reward_and_flag_is_the_naive_ones(games: Games) -> None:
    np.testing.assert_allclose(games.moves.reward, games.naive["reward"], rtol=1e-6)
    np.testing.assert_array_equal(games.moves.truncated, games.naive["over"])
    assert games.moves.reward.dtype == np.float32
    assert not games.moves.terminated.any()
    assert games.moves.truncated.any()


def test_every_mask_is_the_naive_one_and_says_what_is_invalid(games: Games) -> None:
    np.testing.assert_array_equal(games.moves.mask, games.naive["mask"])
    assert 0.1 < games.moves.mask.mean() < 0.9


def test_every_observation_is_the_naive_one(games: Games) -> None:
    for name, seen in games.moves.obs.items():
        assert seen.dtype == np.float32
        np.testing.assert_allclose(seen, games.naive[name], rtol=1e-6, atol=1e-7, err_msg=name)
        assert (seen > 0).any((0, 1)).mean() > 0.3, "much of it is never anything but zero"


def test_every_figure_is_the_naive_one(games: Games) -> None:
    for name, seen in games.moves.info.items():
        assert seen.dtype == np.float32
        np.testing.assert_allclose(seen, games.naive[name], rtol=1e-4, err_msg=name)
    assert set(games.moves.info) == {
        "acceptance", "acceptance_cloud_gaming", "acceptance_ar", "acceptance_voip", "acceptance_video",
        "acceptance_miot", "acceptance_industry", "delay_ms", "cpu_use", "elapsed_ms",
    }  # fmt: skip


def test_installed_functions_time_and_the_agents_way_are_the_naive_ones(games: Games) -> None:
    after = games.moves.after
    np.testing.assert_array_equal(after.dc, games.naive["dc_now"])
    np.testing.assert_array_equal(after.now, games.naive["now"])
    np.testing.assert_array_equal(after.installed, games.naive["installed"])
    np.testing.assert_array_equal(after.requests.live.sum((-1, -2)), games.naive["live"])


def test_the_games_have_all_that_can_happen() -> None:
    total: Counter[str] = Counter()
    for case in CASES:
        total += games_of(case).events
    names = ["satisfied", "dropped", "invalid", "uninstalled a needed one", "a busy link", "a full link", "a full DC"]
    assert all(total[name] >= 20 for name in names), total


# -- single rules -------------------------------------------------------------------------------------

UNINSTALL, ALLOCATE = ({vnf: first + i for i, vnf in enumerate(VNFS)} for first in (0, 6))
QUIET = Sfc(dcs=2, steps=150, arrival_every=1000)
"""Nothing arrives but what a test puts there."""


@cache
def stepper(env: Sfc) -> Any:
    return jax.jit(env.step)


def step(state: SfcState, action: int, env: Sfc = QUIET, key: int = 0) -> tuple[SfcState, float, bool]:
    after, _, reward, _, truncated, _ = stepper(env)(state, jnp.int32(action), jax.random.key(key))
    return jax.device_get(after), float(reward), bool(truncated)


@cache
def masker(env: Sfc) -> Any:
    return jax.jit(env.action_mask)


def legal(state: SfcState) -> list[bool]:
    return np.asarray(masker(QUIET)(state)).tolist()


def network(*requests: Request, cpu: tuple[int, int] = (119, 119), travel: int = 1000) -> SfcState:
    """Two DCs with these requests, of services that differ, just arrived; the agent is in DC 0."""
    state, _ = jax.device_get(jax.jit(QUIET.reset)(jax.random.key(0)))
    r = jax.tree.map(np.array, state.requests)
    r.live[:] = False
    for request in requests:
        at = SERVICES.index(request.service), 0
        for name, value in {
            **{"live": True, "chains": request.chains, "kbps": request.total_kbps(), "came_from": request.source},
            **{"at": request.source, "destination": request.destination},
        }.items():
            getattr(r, name)[at] = value
    everywhere = np.zeros((8, 8), np.int32)
    everywhere[:2, :2] = [[0, travel], [travel, 0]]
    return state._replace(requests=r, cpu=np.array([*cpu] + [0] * 6, np.int32), travel=everywhere, dc=np.int32(0))


def reserved(state: SfcState) -> int:
    return int(used_kbps(jax.tree.map(jnp.asarray, state.requests), jnp.int32(0))[1])


@pytest.mark.parametrize("every", [4, 7])
def test_one_request_of_each_service_arrives_at_once_and_then_every_few_steps(every: int) -> None:
    env = Sfc(dcs=2, steps=30, arrival_every=every)
    state, _ = jax.device_get(jax.jit(env.reset)(jax.random.key(0)))
    assert state.arrived.tolist() == [1] * 6
    times, drawn = [], [newcomers(state)]
    for t in range(60):
        before, (state, _, truncated) = state, step(state, WAIT, env, key=t)
        if (state.arrived != before.arrived).any():
            times.append(int(state.now))
            drawn.append(newcomers(state))
    assert truncated
    assert times == list(range(every, 30, every))
    assert (state.arrived == 1 + len(times)).all()
    for i, service in enumerate(SERVICES):
        chains = [requests[i].chains for requests in drawn]
        assert min(chains) >= BUNDLE[service][0]
        assert max(chains) <= BUNDLE[service][1]
        assert len(set(chains)) > 1, "they are drawn anew"


def test_what_is_drawn_covers_its_ranges() -> None:
    states = jax.device_get(jax.jit(jax.vmap(Sfc().reset))(jax.random.split(jax.random.key(1), 3000))[0])
    count = (states.cpu > 0).sum(1)
    assert np.bincount(count, minlength=9)[2:].min() > 300
    cpu = states.cpu[states.cpu > 0]
    assert (cpu.min(), cpu.max()) == (12, 119)
    assert states.place.min() == 0
    assert states.place.max() == 1000
    km = np.hypot(*np.moveaxis(states.place[:, :, None] - states.place[:, None], -1, 0))
    np.testing.assert_allclose(states.travel, km / 299.792458 * 1000, atol=0.51)
    r = states.requests
    for i, service in enumerate(SERVICES):
        chains = r.chains[:, i, 0]
        assert (chains.min(), chains.max()) == BUNDLE[service]
    rate = r.kbps[:, SERVICES.index("miot"), 0] / r.chains[:, SERVICES.index("miot"), 0]
    assert (rate.min(), rate.max()) == (1000, 50000)
    for end in (r.at, r.destination):
        assert (end[:, :, 0] < count[:, None]).all()
        assert ((end[:, :, 0] == count[:, None] - 1).mean(0) > 0.1).all()


def test_a_chain_is_satisfied_by_its_functions_in_order_and_none_is_allocated_twice() -> None:
    state = network(Request("miot", 10, 1000, source=0, destination=0))
    for vnf in CHAINS["miot"]:
        assert [name for name in VNFS if legal(state)[ALLOCATE[name]]] == [vnf], "only the next one is waited for"
        for other in set(VNFS) - {vnf}:
            assert step(state, ALLOCATE[other])[1] == -1
        state, reward, _ = step(state, ALLOCATE[vnf])
        assert reward == (2 if vnf == "IDPS" else 0)
        assert state.installed[0, VNFS.index(vnf)] == 1
        assert step(state, ALLOCATE[vnf])[1] == -1, "allocated twice"
    assert state.satisfied.sum() == 1
    assert float(state.delay_ms) == pytest.approx(10 * (0.06 + 0.03 + 0.02))


def test_a_function_that_takes_longer_keeps_the_next_one_waiting() -> None:
    state, _, _ = step(network(Request("voip", 100, 64, source=0, destination=0)), ALLOCATE["NAT"])
    busy_for = 100 * MICROSECONDS["NAT"] // 1000  # 6 ms
    for now in range(busy_for):
        assert int(state.now) == now
        assert not legal(state)[ALLOCATE["FW"]]
        assert not legal(state)[UNINSTALL["NAT"]], "it works"
        state = passed(state)
    assert legal(state)[ALLOCATE["FW"]]
    assert legal(state)[UNINSTALL["NAT"]], "idle again"


def passed(state: SfcState) -> SfcState:
    """1 ms later."""
    now = int(state.now)
    while int(state.now) == now:
        state, _, _ = step(state, WAIT)
    return state


def test_a_miot_request_is_dropped_after_five_milliseconds_and_gives_back_what_it_held() -> None:
    state = network(Request("miot", 10, 1000, source=1, destination=1))
    state, _, _ = step(state, ALLOCATE["NAT"])
    assert reserved(state) == 10_000
    rewards = []
    for _ in range(10):  # two DCs
        state, reward, _ = step(state, WAIT)
        rewards.append(reward)
    assert rewards == [0] * 9 + [-1.5]
    assert int(state.now) == LIMIT_MS["miot"]
    assert reserved(state) == 0
    assert not state.requests.live.any()


def test_bandwidth_is_reserved_on_the_way_and_freed_at_the_end() -> None:
    one = Request("industry", 4, 70_000, source=1, destination=1)
    other = Request("ar", 4, 100_000, source=1, destination=0)
    third = Request("miot", 15, 50_000, source=1, destination=1)
    state = network(one, other, third, travel=50)
    state, _, _ = step(state, ALLOCATE["NAT"])
    assert stages(state) == {"miot": 1, "industry": 0, "ar": 0}, "the most urgent one"
    assert reserved(state) == 750_000
    assert not legal(state)[ALLOCATE["NAT"]], "280 or 400 Mbps more are too many"
    assert step(state, ALLOCATE["NAT"])[1] == -1
    state, _, _ = step(state, ALLOCATE["FW"])
    assert reserved(state) == 0, "its latest hop was within the DC"
    state, _, _ = step(state, ALLOCATE["NAT"])
    state, _, _ = step(state, ALLOCATE["NAT"])
    assert stages(state) == {"miot": 2, "industry": 1, "ar": 1}
    assert reserved(state) == 280_000 + 400_000
    state, reward, _ = step(state, ALLOCATE["FW"])
    assert (reward, stages(state)["industry"]) == (2, 2)
    assert reserved(state) == 280_000 + 400_000, "now on its way to the destination"
    state = passed(state)
    assert reserved(state) == 400_000


def stages(state: SfcState) -> dict[str, int]:
    there = [SERVICES.index(name) for name in ("miot", "industry", "ar")]
    return dict(zip(("miot", "industry", "ar"), state.requests.stage[there, 0].tolist(), strict=True))


def test_light_takes_its_time_and_what_cannot_end_in_time_is_not_begun() -> None:
    far = Request("miot", 10, 1000, source=1, destination=1)
    state = network(far, travel=2000)
    for vnf in CHAINS["miot"]:
        state, reward, _ = step(state, ALLOCATE[vnf])
        if vnf != "IDPS":
            state = passed(passed(state))._replace(dc=np.int32(0))
    assert reward == -1, "2 ms there, 0.6 + 0.3 + 0.2 ms of work, 2 ms back, and it was 4 ms old"
    state = network(far, travel=1900)
    state, _, _ = step(state, ALLOCATE["NAT"])
    state = passed(passed(state))._replace(dc=np.int32(0))
    state, _, _ = step(state, ALLOCATE["FW"])
    state, reward, _ = step(state, ALLOCATE["IDPS"])
    assert reward == 2
    assert float(state.delay_ms) == pytest.approx(1.9 + 10 * 0.11 + 1.9)


def test_an_idle_instance_is_used_again_and_uninstalling_makes_room() -> None:
    state = network(Request("miot", 10, 1000, 0, 0), Request("industry", 1, 70_000, 0, 0), cpu=(12, 12))
    state, _, _ = step(state, ALLOCATE["NAT"])
    state, _, _ = step(state, ALLOCATE["NAT"])
    assert state.installed[0].tolist() == [2, 0, 0, 0, 0, 0], "one for each, in the same step"
    state, _, _ = step(state, ALLOCATE["FW"])
    assert state.installed[0].tolist() == [2, 1, 0, 0, 0, 0]
    assert not legal(state)[ALLOCATE["FW"]], "no idle one, and 1 CPU left"
    state = passed(state)._replace(dc=np.int32(0))
    assert not legal(state)[ALLOCATE["IDPS"]], "11 CPUs of 12 are taken"
    after, reward, _ = step(state, ALLOCATE["FW"])
    assert (reward, after.installed[0].tolist()) == (2, [2, 1, 0, 0, 0, 0]), "the one that is idle again"
    state, reward, _ = step(state, UNINSTALL["FW"])
    assert reward == -0.5, "industry waits for it"
    state, reward, _ = step(state, UNINSTALL["NAT"])
    assert reward == 0, "nobody waits for it"
    assert legal(state)[ALLOCATE["IDPS"]]
    assert step(state, ALLOCATE["IDPS"])[0].installed[0].tolist() == [1, 0, 0, 0, 0, 1]


def test_the_agent_goes_where_most_requests_wait_and_stays_until_it_waits() -> None:
    env = Sfc(dcs=8, steps=3, arrival_every=3)
    state, _ = jax.device_get(jax.jit(env.reset)(jax.random.key(4)))
    crowd = np.bincount(state.requests.at[state.requests.live], minlength=8)
    order = sorted(range(8), key=lambda dc: (-crowd[dc], dc))
    assert int(state.dc) == order[0]
    assert len(set(crowd.tolist())) > 1
    seen = []
    for _ in range(8):
        seen.append(int(state.dc))
        state, _, _ = step(state, WAIT, env)
    assert seen == order
    assert int(state.now) == 1


def test_a_step_has_so_many_actions_and_with_full_steps_never_fewer() -> None:
    for env, length in (
        (Sfc(dcs=4, steps=3), 4),
        (Sfc(dcs=4, steps=3, actions_per_step=3), 3),
        (Sfc(dcs=4, steps=3, full_steps=True), 100),
    ):
        state, ends = jax.device_get(jax.jit(env.reset)(jax.random.key(0))[0]), []
        for t in range(3 * length):
            state, _, truncated = step(state, WAIT, env)
            assert int(state.now) == (t + 1) // length
            ends.append(truncated)
        assert ends == [False] * (3 * length - 1) + [True]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dcs": 1}, "dcs is 1, expected 2 … 8 DCs"),
        ({"dcs": 9}, "dcs is 9, expected 2 … 8 DCs"),
        ({"dcs": 4.0}, "dcs is 4.0, expected 2 … 8"),
        ({"dcs": True}, "dcs is True, expected 2 … 8"),
        ({"steps": 0}, "steps is 0, expected a whole number of 1 …"),
        ({"actions_per_step": "100"}, "actions_per_step is '100', expected a whole number"),
        ({"arrival_every": 0}, "arrival_every is 0, expected a whole number of 1 …"),
        ({"full_steps": 1}, "full_steps is 1, expected true or false"),
        ({"dc": 3}, "dc"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused_in_one_line(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        make_env("sfc", options)
    assert str(caught.value).startswith("env.options: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_equal_envs_are_equal_and_can_be_keys() -> None:
    assert replace(Sfc(), dcs=4) == Sfc(dcs=4)
    assert len({Sfc(), Sfc(), Sfc(dcs=2)}) == 2


# -- helpers ------------------------------------------------------------------------------------------


def newcomers(state: SfcState) -> list[Request]:
    """The requests that have arrived at this moment, as the device env drew them: for the naive one."""
    r = state.requests
    new = r.live & (r.arrived == state.now) & (r.stage == 0)
    return [
        Request(
            SERVICES[service],
            chains=int(r.chains[service, i]),
            kbps=int(r.kbps[service, i] // r.chains[service, i]),
            source=int(r.at[service, i]),
            destination=int(r.destination[service, i]),
        )
        for service, i in zip(*np.nonzero(new), strict=True)
    ]


def _naive_of(env: Sfc, begun: SfcState) -> NaiveSfc:
    count = int((begun.cpu > 0).sum())
    return NaiveSfc(
        begun.cpu[:count].tolist(),
        begun.travel[:count, :count].tolist(),
        newcomers(begun),
        **{name: getattr(env, name) for name in ("steps", "actions_per_step", "arrival_every", "full_steps")},
    )


def _replayed(env: Sfc, first: Any, moves: Moves) -> Games:
    """Play the recorded actions once more, naively; only what is drawn is the device env's."""
    decisions, num_envs = moves.reward.shape
    rows: list[dict[str, Any]] = []
    events: Counter[str] = Counter()
    for i in range(num_envs):
        state, obs, mask = jax.tree.map(lambda leaf: leaf[i], first)  # noqa: B023
        naive = _naive_of(env, state)
        np.testing.assert_array_equal(mask, naive.mask())
        for name, seen in naive.observation().items():
            np.testing.assert_allclose(obs[name], seen, rtol=1e-6, atol=1e-7)
        for t in range(decisions):
            after, begun = (jax.tree.map(lambda leaf: leaf[t, i], part) for part in (moves.after, moves.begun))  # noqa: B023
            action, before = int(moves.action[t, i]), naive.now
            events["invalid"] += not naive.is_legal(action)
            satisfied, live = sum(naive.counts["satisfied"].values()), len(naive.requests)
            reward, over = naive.step(action, newcomers(after) if int(after.now) > before else [])
            events["satisfied"] += sum(naive.counts["satisfied"].values()) - satisfied
            events["dropped"] += naive.now > before and len(naive.requests) < live
            events["uninstalled a needed one"] += reward == -0.5
            events["a busy link"] += any(request.links() for request in naive.requests)
            waiting = [request for request in naive.requests if naive.waits(request)]
            events["a full DC"] += any(not naive.has_room(r.needs) and not naive.idle(r.needs) for r in waiting)
            here = [r for r in waiting if r.traffic_at != naive.dc]
            events["a full link"] += any(
                naive.reserved(frozenset((r.traffic_at, naive.dc))) + r.total_kbps() > 1_000_000 for r in here
            )
            padding = [[0] * 6] * (8 - len(naive.dcs))
            rows.append(
                {
                    **{"reward": reward, "over": over, "mask": naive.mask(), "dc_now": naive.dc, "now": naive.now},
                    **{"installed": [list(dc.values()) for dc in naive.installed] + padding},
                    **{"live": len(naive.requests), "elapsed_ms": float(naive.now - before)},
                    **{**naive.figures(), **naive.observation()},
                }
            )
            if over:
                naive = _naive_of(env, begun)
    arrays = {
        name: np.swapaxes(
            np.array([row[name] for row in rows]).reshape(num_envs, decisions, *np.shape(rows[0][name])), 0, 1
        )
        for name in rows[0]
    }
    return Games(env, moves, arrays, events)


@pytest.mark.parametrize(
    ("options", "is_positive"),
    [({"progress": 2.0}, True), ({"lateness": 1.5}, False), ({"progress": 9.0, "lateness": 1.0}, True)],
)
def test_a_potential_moves_rewards_and_changes_no_sum_but_by_what_is_pending(
    options: dict[str, float], is_positive: bool
) -> None:
    """The sum of an episode's rewards differs by what pending requests have, and how late they are, at the end."""
    plain, early = Sfc(dcs=4, steps=12), Sfc(dcs=4, steps=12, **options)

    def episode(env: Sfc, key: jax.Array) -> tuple[jax.Array, jax.Array, SfcState]:
        def step(carry: Any, i: jax.Array) -> Any:
            state, total, over = carry
            act_key, env_key = jax.random.split(jax.random.fold_in(key, i))
            action = jax.random.categorical(act_key, jnp.where(env.action_mask(state), 0.0, -jnp.inf))
            after, _, reward, _, truncated, _ = env.step(state, action, env_key)
            state = jax.tree.map(lambda new, old: jnp.where(over, old, new), after, state)
            return (state, total + jnp.where(over, 0.0, reward), over | truncated), jnp.where(over, 0.0, reward)

        start = (env.reset(key)[0], jnp.float32(0), jnp.bool_(False))
        (state, total, _), rewards = jax.lax.scan(step, start, jnp.arange(400))
        return total, rewards, state

    for seed in range(3):
        key = jax.random.key(seed)
        total, rewards, _ = jax.jit(lambda k: episode(plain, k))(key)
        total_early, rewards_early, state = jax.jit(lambda k: episode(early, k))(key)
        pending = _potential_in_loops(state, **options)
        np.testing.assert_allclose(total_early - total, pending, atol=1e-4)
        assert (pending > 0) == is_positive
        assert pending != 0
        assert not np.allclose(rewards, rewards_early)


def _potential_in_loops(state: SfcState, progress: float = 0.0, lateness: float = 0.0) -> float:
    r, total = jax.tree.map(np.asarray, state.requests), 0.0
    for s, service in enumerate(SERVICES):
        for k in range(r.live.shape[1]):
            if r.live[s, k] and r.stage[s, k] < len(CHAINS[service]):
                total += progress * r.stage[s, k] / len(CHAINS[service])
                total -= lateness * (int(state.now) - r.arrived[s, k]) / LIMIT_MS[service]
    return total


def test_a_needed_function_costs_what_the_option_says() -> None:
    """Of the same moves only those that uninstall a needed function are rewarded otherwise."""
    rewards = {}
    for needed in (-0.5, 0.0):
        env = Sfc(dcs=2, steps=8, needed=needed)

        def step(state: Any, i: jax.Array, env: Sfc = env) -> Any:
            act_key, env_key = jax.random.split(jax.random.fold_in(jax.random.key(1), i))
            action = jax.random.categorical(act_key, jnp.where(env.action_mask(state), 0.0, -jnp.inf))
            state, _, reward, *_ = env.step(state, action, env_key)
            return state, (reward, action)

        first, _ = env.reset(jax.random.key(0))
        _, (reward, action) = jax.jit(lambda state, step=step: jax.lax.scan(step, state, jnp.arange(60)))(first)
        rewards[needed] = np.asarray(reward), np.asarray(action)
    (by_rules, action), (free, _) = rewards[-0.5], rewards[0.0]
    differs = by_rules != free
    assert differs.any()
    assert (action[differs] < 6).all()
    np.testing.assert_allclose((free - by_rules)[differs], 0.5, atol=1e-6)


@pytest.mark.parametrize("name", ["progress", "lateness", "needed"])
@pytest.mark.parametrize("value", ["much", True, 101, -101])
def test_a_reward_that_is_none_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} is"):
        Sfc(**{name: value})
