"""Commands in processes of their own that need not import everything again: forks of one process that has.

A fork has memory, signals, output and an exit code of its own, as a process started anew has; it leaves out two
seconds of imports. JAX is imported there but not started: flags, threads and devices are each command's own choice.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

PRELOADED = ("jax", "matplotlib.pyplot", "optax", "PIL.Image", "safetensors.numpy", "yaml", "gymnasium")
PRELOADED += ("hotloop.cli", "hotloop.api", "hotloop.driver", "hotloop.pipelines.fused", "hotloop.pipelines.sync")
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>


class Fork(subprocess.Popen[str]):
    """`hotloop ARGS` as a fork of the warm process; a Popen in all but how it starts."""

    def _execute_child(
        self, args: Any, executable: Any, preexec: Any, close: Any, keep: Any, cwd: Any, env: Any, *more: Any
    ) -> None:
        """Stands in for fork and exec, with their arguments: behind the first ones come three pairs of pipe ends."""
        pipes = more[3:9]
        _, _, _, out, _, err = pipes
        request = json.dumps({"args": args, "cwd": str(cwd), "env": env}).encode()
        requests = _warm()
        socket.send_fds(requests, [request], [out, err])
        self.pid = int(requests.recv(64))
        self._child_created = True
        self._close_pipe_fds(*pipes)


_requests: socket.socket | None = None


def _warm() -> socket.socket:
    """The way to the warm process of this one, which is started by the first command and ends with us."""
    global _requests
    if _requests is None:
        # A command's parent is gone as soon as it has started, and the next one up is this process: it can wait for it.
        ctypes.CDLL(None, use_errno=True).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
        _requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"COLUMNS": "200"}
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
    return _requests


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for every request; returns it in the fork."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not request:
            sys.exit()
        ours, theirs = os.pipe()
        between = os.fork()
        if between == 0:
            command = os.fork()
            if command == 0:
                for target, descriptor in zip((1, 2), descriptors, strict=True):
                    os.dup2(descriptor, target)
                for descriptor in (ours, theirs, *descriptors, requests.fileno()):
                    os.close(descriptor)
                return json.loads(request)  # type: ignore[no-any-return]
            os.write(theirs, str(command).encode())
            os._exit(0)
        os.waitpid(between, 0)
        requests.send(os.read(ours, 64))
        for descriptor in (ours, theirs, *descriptors):
            os.close(descriptor)


if __name__ == "__main__":
    import importlib
    import signal

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in PRELOADED:
        importlib.import_module(name)
    from hotloop import cli

    command = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(command["env"])
    os.chdir(command["cwd"])
    here = [] if "PYTHONSAFEPATH" in os.environ else [str(Path.cwd())]
    sys.path[:1] = [*here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [cli.__file__, *command["args"]]
    cli.main()
