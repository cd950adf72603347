"""The key: secret, whole, one per user; without it a run is unsigned, and nothing fails."""

import json
import os
import secrets
import stat
import threading

import pytest
from hotloop_process import TINY

import hotloop as package
from hotloop.runs import signing
from hotloop.runs.folder import FORMAT, RunFolder
from hotloop.spec.reading import load_spec


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_KEY_FOLDER", str(tmp_path / "key folder"))
    return tmp_path / "key folder"


def test_a_signature_belongs_to_one_spec_and_one_format(folder):
    given = signing.sign(2, "/here", b"name: a")
    assert signing.is_signed(given, 2, "/here", b"name: a")
    assert not signing.is_signed(given, 2, "/here", b"name: b")
    assert not signing.is_signed(given, 3, "/here", b"name: a")
    assert not signing.is_signed(given, 2, "/there", b"name: a")
    assert not signing.is_signed(None, 2, "/here", b"name: a")


def test_the_key_is_random_and_for_its_user_alone(folder):
    signing.sign(2, "/here", b"")
    [file] = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = file.read_bytes()
    assert len(first) == 32
    file.unlink()
    signing.sign(2, "/here", b"")
    assert file.read_bytes() != first


def test_it_lies_in_the_users_config_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("HOTLOOP_KEY_FOLDER")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert signing.key_file() == tmp_path / "config" / "hotloop" / "key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert signing.key_file() == tmp_path / ".config" / "hotloop" / "key"
    for here in ("", ".", "downloads"):
        monkeypatch.setenv("XDG_CONFIG_HOME", here)
        assert signing.key_file() == tmp_path / ".config" / "hotloop" / "key", "never in the current folder"


def test_many_at_once_agree_on_one_key(folder):
    count, given = 16, []
    together = threading.Barrier(count)

    def work():
        together.wait()
        given.append(signing.sign(2, "/here", b"x"))

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == count
    assert len(set(given)) == 1
    assert [file.name for file in folder.iterdir()] == ["key"], "nothing temporary is left"


def test_a_key_made_by_another_process_in_the_meantime_is_kept(folder, monkeypatch):
    genuine = os.link

    def beaten(source, target):
        target.write_bytes(b"k" * 32)
        target.chmod(0o600)
        genuine(source, target)

    monkeypatch.setattr(os, "link", beaten)
    given = signing.sign(2, "/here", b"x")
    assert (folder / "key").read_bytes() == b"k" * 32
    assert signing.is_signed(given, 2, "/here", b"x")


def _damage(folder, what):
    folder.mkdir()
    if what == "a folder in its place":
        (folder / "key").mkdir()
    elif what == "a pipe in its place":
        os.mkfifo(folder / "key", 0o600)
    else:
        (folder / "key").write_bytes(secrets.token_bytes(31 if what == "short" else 32))
        (folder / "key").chmod(0o644 if what == "open to others" else 0o600)


@pytest.mark.parametrize("what", ["short", "open to others", "a folder in its place", "a pipe in its place"])
def test_a_key_that_cannot_be_trusted_is_not_used(folder, what):
    _damage(folder, what)
    before = {file.name for file in folder.iterdir()}
    with pytest.raises(signing.NoKey, match=str(folder)):
        signing.sign(2, "/here", b"")
    with pytest.raises(signing.NoKey, match=str(folder)):
        signing.is_signed("0" * 64, 2, "/here", b"")
    assert {file.name for file in folder.iterdir()} == before


def test_a_run_without_a_key_is_made_all_the_same_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOTLOOP_KEY_FOLDER", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="not signed as yours.*cannot be written"):
        run = package.train(TINY, out=tmp_path / "run", **{"stop.steps": 80})
    assert run.env_steps == 80
    facts = json.loads((run.path / "run.json").read_text())
    assert (facts["format"], facts["signature"]) == (FORMAT, None)
    assert package.load(run, which="best").predict([0.0] * 4) in (0, 1)


def test_a_run_with_a_key_is_signed(finished):
    facts = json.loads((finished / "run.json").read_text())
    assert facts["format"] == FORMAT == 4
    assert signing.is_signed(facts["signature"], FORMAT, facts["made_in"], (finished / "spec.yaml").read_bytes())


def test_a_run_stays_its_makers_when_its_spec_is_rewritten(tmp_path):
    folder, spec = RunFolder(tmp_path / "run"), load_spec("cartpole")
    assert folder.create(spec, {}) is None
    longer = load_spec(spec, {"stop.steps": 999_999})
    folder.rewrite_spec(longer)
    again = RunFolder.open(folder.path)
    assert (again.read_spec().stop.steps, again.doubt()) == (999_999, None)


def test_a_rewriting_that_is_interrupted_leaves_a_run_that_is_known(tmp_path, monkeypatch):
    folder, spec = RunFolder(tmp_path / "run"), load_spec("cartpole")
    folder.create(spec, {})
    write = RunFolder.write

    def only_the_first_file(self, path, text):
        if path == self.spec_file:
            raise OSError("no space left")
        write(self, path, text)

    monkeypatch.setattr(RunFolder, "write", only_the_first_file)
    for steps in (999_999, 888_888):
        with pytest.raises(OSError, match="no space"):
            folder.rewrite_spec(load_spec(spec, {"stop.steps": steps}))
    again = RunFolder.open(folder.path)
    assert (again.read_spec().stop.steps, again.doubt()) == (spec.stop.steps, None)


def test_rewriting_a_run_from_elsewhere_does_not_sign_it(tmp_path):
    folder, spec = RunFolder(tmp_path / "run"), load_spec("cartpole")
    folder.create(spec, {})
    facts = json.loads(folder.facts_file.read_text())
    folder.facts_file.write_text(json.dumps({**facts, "signature": "00" * 32}))
    RunFolder.open(folder.path).rewrite_spec(load_spec(spec, {"stop.steps": 999_999}))
    assert RunFolder.open(folder.path).doubt() is not None


def test_a_key_folder_that_depends_on_the_current_one_is_refused(monkeypatch):
    monkeypatch.setenv("HOTLOOP_KEY_FOLDER", "here")
    with pytest.raises(signing.NoKey, match="'here', expected an absolute path"):
        signing.sign(2, "/here", b"")


def test_a_key_is_made_where_files_cannot_be_linked(folder, monkeypatch):
    def link(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", link)
    assert signing.is_signed(signing.sign(2, "/here", b""), 2, "/here", b"")
