"""Training opens no port and talks to nobody."""

from hotloop_process import DAYS, finish, start, wait_for

from process_tree import sockets_of


def test_a_training_process_opens_no_socket(tmp_path, spec_file):
    process = start("train", "tiny.yaml", "--out", "run", "--steps", str(DAYS), cwd=tmp_path)
    seen = []
    lines = tmp_path / "run" / "metrics.jsonl"

    def is_training():
        seen.extend(sockets_of(process.pid))
        return lines.is_file() and lines.read_text().count("\n") > 20

    wait_for(is_training, process)
    process.terminate()
    assert finish(process).code == 0
    assert seen == []


def test_a_socket_would_be_seen(tmp_path, spec_file):
    listening = "import socket; s = socket.create_server(('127.0.0.1', 0))"
    process = start("train", "tiny.yaml", "--steps", str(DAYS), cwd=tmp_path, before=listening)
    assert wait_for(lambda: sockets_of(process.pid), process)
    process.kill()
    finish(process)
