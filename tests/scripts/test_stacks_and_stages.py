"""What a sampler writes is read as it is, and each stack's time has the cause and the line that a reader would give."""

from hotloop.doctor.scripts.stacks import Frame, Stack, busiest_thread, read_stacks
from hotloop.doctor.scripts.stages import OTHER, TRAINS, reader_of, seen_as

MINE = "/home/me/train.py"
TORCH = "/venv/lib/python3.11/site-packages/torch"


def is_mine(file):
    return file.startswith("/home/me/")


def frames(*said):
    """`function file:line`, the outermost first; `file` alone means one's own."""
    found = []
    for each in said:
        function, _, place = each.partition(" ")
        file, _, line = place.rpartition(":")
        found.append(Frame(function, file or MINE, int(line or 1)))
    return found


def cause(*said, beside=()):
    stacks = [Stack("", tuple(frames(*each)), 1) for each in (said, *beside)]
    seen = seen_as(frames(*said), reader_of(stacks, is_mine), lambda frame: "")
    return seen.cause, seen.at.line if seen.at else None


def test_lines_of_the_sampler_are_stacks():
    text = (
        "thread (12): MainThread;<module> (/a b/train.py:17);Env.step (/a b/train.py:5) 59\n"
        "thread (13): worker;run (/lib/threading.py:982) 7\n"
        "not a stack\n"
        "\n"
    )
    assert read_stacks(text) == [
        Stack("MainThread", (Frame("<module>", "/a b/train.py", 17), Frame("Env.step", "/a b/train.py", 5)), 59),
        Stack("worker", (Frame("run", "/lib/threading.py", 982),), 7),
    ]


def test_the_thread_that_trains_is_not_the_one_that_waits():
    waits = Stack("feeder", tuple(frames("wait /lib/python3.11/threading.py:300")), 900)
    trains = Stack("MainThread", tuple(frames("<module> :3", "hotloop.backward hook.py:1")), 100)
    assert busiest_thread([waits, trains], TRAINS) == "MainThread"
    assert busiest_thread([waits], TRAINS) == "feeder"
    assert busiest_thread([], TRAINS) == ""


def test_steps_of_an_env_are_at_its_own_line_or_where_it_is_called():
    assert cause("<module> :9", "hotloop.env.step hook:1", "Maze.step :20", "Maze.search :31") == ("env-step", 31)
    library = "/venv/lib/python3.11/site-packages/gymnasium/envs/classic_control/cartpole.py:7"
    assert cause("<module> :9", "hotloop.env.step hook:1", f"CartPoleEnv.step {library}") == ("env-step", 9)
    draws = ("<module> :9", "hotloop.env.step hook:1", "Maze.step :20", "Maze._render_frame :40")
    assert cause(*draws) == ("rendering", 40)
    worker = "/venv/lib/python3.11/site-packages/gymnasium/vector/async_vector_env.py:300"
    assert cause("main :9", "hotloop.env.step hook:1", f"AsyncVectorEnv.step {worker}") == ("env-transport", 9)


def test_what_is_around_says_what_it_is_for():
    evaluation = ("main :50", "evaluate :70", "hotloop.env.step hook:1", "Maze.step :20")
    assert cause(*evaluation) == ("evaluation", 50), "too often is decided by who calls it"
    assert cause("main :50", "Agent.learn :60", "ReplayBuffer.sample :80", "hotloop.new_tensor hook:1") == (
        "replay-sample",
        80,
    )
    assert cause("main :50", "Agent.learn :61", "hotloop.new_tensor hook:1") == ("conversion", 61)
    assert cause("main :50", "Agent.learn :62", "hotloop.item hook:1") == ("host-sync", 62)
    assert cause("main :50", "Agent.learn :63", "hotloop.optimizer hook:1", f"Adam.step {TORCH}/optim/adam.py:2") == (
        "update",
        63,
    )
    assert cause("main :50", "hotloop.optimizer hook:1", "hotloop.item hook:1") == ("update", 50), "Adam's own"


def test_names_of_ones_own_functions():
    assert cause("main :5", "ReplayBuffer.push :8") == ("replay-insert", 8)
    assert cause("main :5", "PrioritizedReplay.sample :8", "SumTree.retrieve :9") == ("priorities", 9)
    assert cause("main :5", "Agent.soft_update :8") == ("target-copy", 5)
    assert cause("main :5", "deepcopy /usr/lib/python3.11/copy.py:128") == ("debug-work", 5)
    assert cause("main :5", "Queue.get /usr/lib/python3.11/multiprocessing/queues.py:103") == ("waiting", 5)
    assert cause("main :5", "compute :8") == (OTHER, 8)


def test_a_function_within_which_the_training_goes_on_is_not_what_its_name_says():
    learns = ("train_and_evaluate :5", "hotloop.backward hook:1")
    assert cause("train_and_evaluate :5", "compute :8", beside=[learns]) == (OTHER, 8)
    agent = ("main :5", "PrioritizedDQNAgent.learn :8", "hotloop.backward hook:1")
    assert cause(*agent) == ("update", 8)
    plays = ("Memory.collect :6", "hotloop.env.step hook:1")
    assert cause("Memory.collect :6", "compute :9", beside=[plays]) == (OTHER, 9)
    assert cause("main :5", "add_noise :8") == (OTHER, 8)
    assert cause("main :5", "logits :8") == (OTHER, 8)


def test_a_training_in_a_thread_does_not_wait():
    bootstrap = "Thread._bootstrap /usr/lib/python3.11/threading.py:1002"
    assert cause(bootstrap, "learn :8", "hotloop.backward hook:1") == ("update", 8)
    assert cause(bootstrap, "Condition.wait /usr/lib/python3.11/threading.py:320") == ("waiting", None)


def test_pickling_is_told_from_waiting():
    get, send = (
        "Queue.get /lib/python3.11/multiprocessing/queues.py:103",
        "Connection.send /lib/python3.11/multiprocessing/connection.py:200",
    )
    assert cause("main :5", get, "hotloop.loads hook:1") == ("pickling", 5)
    assert cause("main :5", send, "ForkingPickler.dumps /lib/python3.11/multiprocessing/reduction.py:51") == (
        "pickling",
        5,
    )
    assert cause("main :5", get) == ("waiting", 5)


def test_what_a_line_calls_in_c_is_read_in_its_text():
    seen = seen_as(frames("main :99"), reader_of([], is_mine), lambda frame: "print(loss)")
    assert seen.cause == "logging"


def test_a_network_asked_row_by_row_while_learning_is_no_acting():
    learns = ("<module> :9", "Agent.learn :25", "hotloop.backward hook:1")
    asks = ("<module> :9", "Agent.learn :20", "hotloop.ask hook:1")
    assert cause(*asks, beside=[learns]) == ("update", 20)
    plays = ("<module> :9", "Agent.learn :22", "hotloop.env.step hook:1")
    assert cause(*asks, beside=[learns, plays]) == ("act", 20), "a function that does both"
    assert cause("<module> :9", "hotloop.ask hook:1", beside=[("<module> :12", "hotloop.backward hook:1")]) == (
        "act",
        9,
    )
