"""``sgljit-remote push``, ``pull`` and ``key new``: many artifacts at once."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

import pytest

from sgljit_core.errors import ConfigError
from sgljit_remote import cli, commands, index, objects, signing
from sgljit_remote.remote import put_in_place

from . import served
from .conftest import files
from .served import artifact, within

NORMS = [artifact(number) for number in range(3)]
MOE = artifact(9, family="moe")


@pytest.fixture
def filled(cache):
    """The cache with artifacts of two families."""
    for one in (*NORMS, MOE):
        put_in_place(one, cache)
    return cache


@pytest.fixture
def run(server, monkeypatch, capsys):
    """Run a command with the server as its remote: exit status and output."""
    monkeypatch.setenv("SGLJIT_REMOTE", server.url)
    monkeypatch.setenv("SGLJIT_REMOTE_UNSIGNED", "1")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, arguments)])
        captured = capsys.readouterr()
        return ended.value.code, captured.out + captured.err

    return run


def test_what_one_machine_pushes_another_pulls(run, filled, server, tmp_path):
    status, output = run("push")
    assert status == 0
    assert "3/4 pushed: norm.number<1> for cpu-x86_64" in output
    assert "wrote the archive cpu-x86_64.norm: 3 artifacts" in output
    assert output.endswith(f"4 artifacts are in {server.url}\n")
    archives = index.parse(server.objects[f"/{index.NAME}"])
    assert sorted(archives) == ["cpu-x86_64.moe", "cpu-x86_64.norm"]
    server.requests.clear()
    other = tmp_path / "other"
    status, output = run("pull", "--directory", other)
    assert status == 0
    assert output.endswith(f"4 artifacts are new in {other}, 0 were there, 0 were refused\n")
    assert files(other) == files(filled)
    assert len(server.requests) == 3
    status, output = run("pull", "--directory", other)
    assert "0 artifacts are new" in output
    assert "4 were there" in output
    assert len(server.requests) == 4  # the index alone


@pytest.mark.parametrize("kept", [0, 1])
def test_an_archive_without_what_the_index_lists_is_an_error(run, filled, server, tmp_path, kept):
    run("push", "norm")
    (name,) = (name for name in server.objects if name.endswith("cpu-x86_64.norm.zip"))
    server.objects[name] = objects.pack(NORMS[:kept], None)
    status, output = run("pull", "norm", "--directory", tmp_path / "other")
    assert status == 1
    assert f"cpu-x86_64.norm of {server.url} lacks {3 - kept} artifacts that the index lists, such as" in output


def test_a_second_push_writes_what_is_new(run, filled, server):
    run("push")
    put_in_place(artifact(7), filled)
    _, output = run("push", "norm")
    assert len(re.findall(r"\d/4 is there", output)) == 3
    assert len(re.findall(r"\d/4 pushed", output)) == 1
    assert sorted(index.parse(server.objects[f"/{index.NAME}"])) == ["cpu-x86_64.moe", "cpu-x86_64.norm"]


@pytest.fixture
def other(tmp_path):
    """Another builder's cache, with one artifact of a family that the first has pushed, and one of another core's."""
    root = tmp_path / "other"
    for one in (artifact(7), NORMS[0]):
        put_in_place(one, root)
    return root


def archived(server):
    content = server.objects["/sgljit-1/archives/cpu-x86_64.norm.zip"]
    return {one.place: one.payload for one in objects.unpack(content, ()).artifacts}


def payloads(*artifacts):
    return {one.place: one.payload for one in artifacts}


def test_a_push_of_another_builder_keeps_what_the_archive_has(run, filled, other, server):
    run("push")
    status, output = run("push", "--directory", other)
    assert status == 0
    assert "wrote the archive cpu-x86_64.norm: 4 artifacts" in output
    assert archived(server) == payloads(*NORMS, artifact(7))
    listed = index.parse(server.objects[f"/{index.NAME}"])["cpu-x86_64.norm"]
    assert set(listed.artifacts) == archived(server).keys()
    assert listed.size == len(server.objects[f"/{listed.object_name}"])
    run("push", "--replace", "--directory", other)  # nothing stays
    assert archived(server) == payloads(NORMS[0], artifact(7))


def test_an_archive_that_would_be_too_large_is_said_to_lose_what_others_have_put_into_it(
    run, filled, other, server, said, monkeypatch
):
    run("push", "norm")
    monkeypatch.setattr(
        "sgljit_remote.remote.LARGEST_ARCHIVE", len(server.objects["/sgljit-1/archives/cpu-x86_64.norm.zip"])
    )
    run("push", "norm", "--directory", other)
    assert archived(server) == payloads(NORMS[0], artifact(7))
    assert [text for text in said() if "2 artifacts that it had are left out" in text] == said()
    assert len(said()) == 1


def test_a_push_leaves_out_what_would_make_too_many_files(run, filled, other, server, said, monkeypatch):
    """Each machine refuses an archive of too many files, or of too many bytes that shrank."""
    run("push", "norm")
    monkeypatch.setattr(objects, "_MEMBERS", 7)
    assert run("push", "norm", "--directory", other)[0] == 0
    assert archived(server) == payloads(NORMS[0], artifact(7))
    (warning,) = said()
    assert "would get too large, as it holds more than 7 files: 2 artifacts that it had are left out" in warning


@pytest.mark.parametrize("limit", ["_MEMBERS", "LARGEST"])
def test_an_archive_that_each_machine_would_refuse_is_an_error(run, filled, server, monkeypatch, limit):
    monkeypatch.setattr(objects, limit, 5)
    status, output = run("push", "norm", "--name", "all")
    assert status == 1
    assert "the archive all is not written, as each machine would refuse it: it" in output
    assert not any("archives" in name or "index" in name for name in server.objects)


@pytest.mark.parametrize("limit", ["_MEMBERS", "LARGEST"])
def test_a_file_that_each_machine_would_refuse_is_not_exported(run, filled, tmp_path, monkeypatch, limit):
    monkeypatch.setattr(objects, limit, 5)
    (tmp_path / "all.zip").write_text("an older one")
    status, output = run("export", tmp_path / "all.zip")
    assert status == 1
    assert f"{tmp_path}/all.zip is not written, as each machine would refuse it: it" in output
    assert (tmp_path / "all.zip").read_text() == "an older one"


def test_an_error_about_artifacts_that_are_too_many_blames_nothing_that_the_archive_has(
    run, filled, server, said, monkeypatch
):
    """A warning said that this was left out, of an archive that is not written at all."""
    put_in_place(artifact(7), filled.parent / "first")
    run("push", "--directory", filled.parent / "first")
    before = archived(server)
    monkeypatch.setattr(objects, "_MEMBERS", 5)
    status, output = run("push", "norm")
    assert status == 1
    assert "error: the archive cpu-x86_64.norm is not written, as each machine would refuse it: it holds" in output
    assert said() == []
    assert archived(server) == before == payloads(artifact(7))


def test_a_push_does_not_sign_what_others_have_put_into_an_archive(
    run, filled, other, server, key, tmp_path, monkeypatch
):
    """Artifacts of a stranger are left out; those of another trusted key keep their signatures."""
    run("push", "norm")  # unsigned, so that it could be anybody's
    monkeypatch.delenv("SGLJIT_REMOTE_UNSIGNED")
    monkeypatch.setenv("SGLJIT_TRUSTED_KEYS", str(key.parent / "trusted"))
    status, _ = run("push", "norm", "--sign", key, "--directory", other)
    assert status == 0
    assert archived(server) == payloads(NORMS[0], artifact(7))
    signing.new_key(tmp_path / "second").rename(key.parent / "trusted/second.pub")
    run("push", "norm", "--sign", tmp_path / "second", "--directory", filled)
    own = signing.public_keys([key.parent / "trusted/own.pub"])
    content = server.objects["/sgljit-1/archives/cpu-x86_64.norm.zip"]
    assert objects.unpack(content, own).artifacts == (artifact(7),)
    assert archived(server) == payloads(*NORMS, artifact(7))


@pytest.mark.parametrize("content", [b"damaged", index.dump([])])
def test_a_push_keeps_what_an_archive_has_that_the_index_does_not_list(run, filled, other, server, content):
    run("push", "norm")
    server.objects[f"/{index.NAME}"] = content
    assert run("push", "norm", "--directory", other)[0] == 0
    assert archived(server) == payloads(*NORMS, artifact(7))


def test_a_damaged_archive_is_written_anew(run, filled, other, server, said):
    run("push", "norm")
    server.objects["/sgljit-1/archives/cpu-x86_64.norm.zip"] = b"damaged"
    status, _ = run("push", "norm", "--directory", other)
    assert status == 0
    assert archived(server) == payloads(NORMS[0], artifact(7))
    assert "cpu-x86_64.norm.zip is refused and not used: it is no archive of artifacts" in said()[0]


def test_families_and_targets_are_chosen(run, filled, server, tmp_path):
    other = artifact(1, target="sm_90a")
    put_in_place(other, filled)
    _, output = run("push", "norm", "--target", "sm_90a")
    assert output.count("pushed") == 1
    run("push")
    _, output = run("pull", "norm", "--target", "sm_90a", "--directory", tmp_path / "gpu")
    assert files(tmp_path / "gpu") == [other.place]
    run("pull", "moe", "--directory", tmp_path / "moe")
    assert files(tmp_path / "moe") == [MOE.place]


@pytest.mark.parametrize("command", [["push"], ["push", "--dry-run"], ["export", "kernels.zip"]])
@pytest.mark.parametrize(
    ("chosen", "absent"),
    [(["norm", "nrom"], "nrom"), (["moe", "--target", "cpu-x86_64", "--target", "sm_9"], "sm_9"), (["nrom"], "nrom")],
)
def test_a_misspelt_family_or_target_is_an_error_and_nothing_is_done(
    run, filled, server, tmp_path, monkeypatch, command, chosen, absent
):
    """Though others that are named have artifacts: a status of 0 would say that all is done."""
    monkeypatch.chdir(tmp_path)
    status, output = run(*command, *chosen)
    assert status == 1
    assert output == (
        f"error: {filled} has no such artifact of {absent}; it has the families moe, norm and the targets cpu-x86_64\n"
    )
    assert server.objects == {}
    assert not (tmp_path / "kernels.zip").exists()


@pytest.mark.parametrize("command", [["push"], ["push", "norm"], ["export", "kernels.zip"]])
@pytest.mark.parametrize("closed", [".", "cpu-x86_64/moe"])
def test_a_cache_that_may_not_be_read_is_not_taken_for_an_empty_one(
    run, filled, server, tmp_path, monkeypatch, command, closed
):
    monkeypatch.chdir(tmp_path)
    listed = Path.iterdir

    def iterdir(path):
        if path == filled / closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    status, output = run(*command)
    assert (status, output) == (1, f"error: [Errno 13] Permission denied: '{filled / closed}'\n")
    assert server.objects == {}
    assert not (tmp_path / "kernels.zip").exists()


def test_what_another_process_removes_meanwhile_is_left_out(run, filled, server, monkeypatch):
    listed = Path.iterdir

    def iterdir(path):
        if path == filled / "cpu-x86_64/moe":
            shutil.rmtree(path)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    status, output = run("push")
    assert (status, output.splitlines()[-1]) == (0, f"3 artifacts are in {server.url}")
    assert archived(server) == payloads(*NORMS)


@pytest.mark.parametrize("command", [["push"], ["export", "kernels.zip"]])
def test_artifacts_that_are_damaged_are_left_out_and_the_status_is_1(
    run, filled, server, said, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    (filled / NORMS[0].place / NORMS[0].manifest.payload).write_bytes(b"damaged")
    status, output = run(*command)
    assert status == 1
    assert "\n3 artifacts are in " in f"\n{output}"
    assert output.endswith(
        "error: some artifacts are damaged and left out; see the warnings, and `sgljit cache prune` them\n"
    )
    assert f"{filled / NORMS[0].place} is damaged and left out: " in said()[0]


def test_what_a_model_asked_for_is_pushed_alone(run, filled, server, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(filled.parent)
    commands.push(name="llama", artifact=[filled / NORMS[0].place, Path(filled.name) / MOE.place])
    assert "1/2 pushed: " in capsys.readouterr().out
    run("pull", "--name", "llama", "--directory", tmp_path / "other")
    assert files(tmp_path / "other") == sorted([NORMS[0].place, MOE.place])
    with pytest.raises(ConfigError, match="nothing to push"):
        commands.push(name="llama", artifact=[])
    with pytest.raises(
        ConfigError, match=re.escape(f"--artifact {tmp_path / 'carried'} is no artifact of the cache /")
    ):
        commands.push(name="llama", artifact=[filled / MOE.place, tmp_path / "carried"])


def test_an_archive_of_a_model_is_one_request(run, filled, server, tmp_path, session):
    status, _ = run("push", "--name", "llama-3_70b")
    assert status == 0
    server.requests.clear()
    status, _ = run("pull", "--name", "llama-3_70b", "--directory", tmp_path / "other")
    assert status == 0
    assert files(tmp_path / "other") == files(filled)
    assert server.requests == [f"GET /{index.NAME}", "GET /sgljit-1/archives/llama-3_70b.zip"]
    server.requests.clear()
    manifest = MOE.manifest  # a process that needs one of its artifacts brings all of it, too
    session().fetch(manifest.location.path, manifest.toolchain_key, tmp_path / "third")
    assert files(tmp_path / "third") == files(filled)
    assert server.requests == [f"GET /{index.NAME}", "GET /sgljit-1/archives/llama-3_70b.zip"]


@pytest.mark.parametrize("command", [("push",), ("push", "--name", "model")])
def test_a_dry_run_writes_nothing(run, filled, server, command):
    status, output = run(*command, "--dry-run")
    assert status == 0
    assert output.count("would push") == 4
    assert "4 artifacts would be in" in output
    assert server.objects == {}
    assert not [request for request in server.requests if not request.startswith("GET ")]


@pytest.mark.parametrize("more", [(), ("--replace",), ("--name", "all")])
def test_a_dry_run_says_what_a_push_then_does(run, filled, other, server, more):
    run("push", "norm")
    before = dict(server.objects)
    _, said = run("push", *more, "--dry-run", "--directory", other)
    assert server.objects == before
    _, done = run("push", *more, "--directory", other)
    for word, planned in {"pushed": "would push", "wrote": "would write", "are in": "would be in"}.items():
        done = done.replace(word, planned)
    assert said == done
    assert said.count("is there: norm.number<0>") == ("--replace" not in more)


def test_a_dry_run_asks_the_remote_for_what_is_still_to_be_compiled(run, filled, server, capsys):
    run("push", "moe")
    shutil.rmtree(filled / MOE.place)
    unmade = filled / artifact(8).place
    before = dict(server.objects)
    wanted = [filled / NORMS[0].place, filled / MOE.place, unmade]
    capsys.readouterr()
    commands.push(name="llama", artifact=wanted, dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        f"1/3 would push: {NORMS[0].manifest.build}, {len(NORMS[0].payload)} bytes",
        f"2/3 is there: {MOE.manifest.build}, {len(MOE.payload)} bytes",
        f"3/3 would push, once it is compiled: {unmade}",
    ]
    assert lines[3].startswith("would write the archive llama: 2 artifacts, ")
    assert lines[4:] == [
        "archives get 1 artifacts more, whose sizes are known once they are compiled",
        f"3 artifacts would be in {server.url}",
    ]
    assert server.objects == before
    assert files(filled) == sorted(one.place for one in NORMS)
    with pytest.raises(ConfigError, match="is no artifact of the cache"):
        commands.push(name="llama", artifact=wanted)
    with pytest.raises(ConfigError, match="is no artifact of the cache"):
        commands.push(name="llama", artifact=[filled / "norm"], dry_run=True)


def test_a_dry_run_of_a_pull_reads_the_index_alone(run, filled, server, tmp_path):
    run("push")
    server.requests.clear()
    status, output = run("pull", "--dry-run", "--directory", tmp_path / "other")
    assert status == 0
    assert "would pull cpu-x86_64.norm: 3 new artifacts" in output
    assert files(tmp_path / "other") == []
    assert server.requests == [f"GET /{index.NAME}"]


def test_what_is_pulled_must_be_signed(run, filled, key, monkeypatch, server, tmp_path):
    monkeypatch.setenv("SGLJIT_TRUSTED_KEYS", str(tmp_path / "trusted"))
    monkeypatch.delenv("SGLJIT_REMOTE_UNSIGNED")
    status, output = run("push")
    assert status == 1
    assert "there is no key to sign with: name one with --sign, or in SGLJIT_SIGNING_KEY" in output
    assert server.objects == {}
    status, _ = run("push", "--sign", key)
    assert status == 0
    status, output = run("pull", "--directory", tmp_path / "good")
    assert status == 0
    assert len(files(tmp_path / "good")) == 4
    signing.new_key(tmp_path / "stranger")
    forged = objects.pack(NORMS, signing.private_key(tmp_path / "stranger"))
    server.objects["/sgljit-1/archives/cpu-x86_64.norm.zip"] = forged
    status, output = run("pull", "--directory", tmp_path / "bad")
    assert status == 1
    assert output.endswith("1 artifacts are new in " + f"{tmp_path / 'bad'}, 0 were there, 3 were refused\n")
    assert files(tmp_path / "bad") == [MOE.place]


def test_a_damaged_artifact_is_not_pushed(run, filled, said):
    (filled / NORMS[0].place / "module.so").write_bytes(b"damaged")
    _, output = run("push")
    assert output.count("pushed: ") == 3
    assert "is damaged and left out" in said()[0]


def test_an_archive_that_nobody_pushed_is_an_error_with_those_that_there_are(run, filled):
    status, output = run("pull")
    assert status == 1
    assert "has no archive of any family; expected one of those that were pushed: none" in output
    run("push")
    for chosen, text in ((("rope",), "rope"), (("norm", "rope"), "rope"), (("--name", "x"), "x")):
        status, output = run("pull", *chosen)
        assert status == 1
        assert f"has no archive of {text}; expected one of those that were pushed: cpu-x86_64.moe, " in output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("push", "--directory", "/nothing"), "nothing to push: /nothing holds no such artifact"),
        (("push", "--name", "a/b"), "--name takes letters, digits, '-' and '_'; got 'a/b'"),
        (("push", "--name", "sm_90a.norm"), "--name takes letters"),
        (("pull", "norm", "--name", "x"), "--name is one archive, which is pulled whole"),
        (("pull", "--timeout", "0"), "--timeout takes a number of seconds, more than 0 and at most 86400; got 0"),
        (("pull", "--timeout", "inf"), "--timeout takes a number of seconds, more than 0 and at most 86400; got inf"),
        (("pull", "--timeout", "86401"), "--timeout takes a number of seconds, more than 0 and at most 86400"),
        (("pull", "--timeout", "nan"), "--timeout takes a number"),
        (("push", "--sign", "/nothing"), "the key /nothing cannot be read"),
    ],
)
def test_wrong_arguments_are_an_error_in_a_line(run, filled, server, arguments, text):
    status, output = run(*arguments)
    assert status == 1
    assert output.startswith(f"error: {text}")
    assert server.requests == []


def test_without_a_remote_the_error_names_the_variable(run, monkeypatch):
    monkeypatch.delenv("SGLJIT_REMOTE")
    assert run("push") == (1, "error: no remote is named: set SGLJIT_REMOTE to a URL, or give --remote URL\n")


def test_a_remote_that_is_down_is_an_error_in_its_time(run, filled, server):
    server.fault = served.stalled
    with within(0.3):
        status, output = run("pull", "--timeout", "0.3")
    assert (status, output) == (1, f"error: the remote {server.url} cannot be used now: no answer, for 0.3 s\n")


@pytest.mark.parametrize("code", [405, 409])  # 409: a server that makes no directories
def test_a_remote_that_takes_nothing_is_an_error(run, filled, server, code):
    server.fault = served.status(code)
    status, output = run("push", "--timeout", "0.5")
    assert status == 1
    assert f"it answers {code}" in output


def test_a_remote_that_does_not_replace_its_index_is_an_error(run, filled, server):
    def fault(handler):
        return handler.command == "PUT" and handler.path.endswith(index.NAME) and served.status(412)(handler)

    server.fault = fault
    status, output = run("push")
    assert status == 1
    assert f"it does not replace {index.NAME}: it answers 412" in output


def test_a_wrong_index_is_written_anew(run, filled, server, said):
    server.objects[f"/{index.NAME}"] = b"nonsense"
    assert run("pull")[0] == 1
    assert run("push")[0] == 0
    assert run("pull")[0] == 0
    assert "it is no index of archives" in said()[0]


def test_a_new_key(run, tmp_path):
    status, output = run("key", "new", tmp_path / "mine")
    assert status == 0
    assert f"wrote {tmp_path / 'mine'}, which signs (keep it secret), and {tmp_path / 'mine'}.pub" in output
    assert run("key", "new", tmp_path / "mine")[0] == 1
    (public,) = signing.public_keys([tmp_path / "mine.pub"])
    assert public == (
        tmp_path / "mine.pub",
        signing.private_key(tmp_path / "mine").public_key().public_bytes_raw(),
        None,
    )


def test_a_cache_that_cannot_be_written_is_an_error(run, filled, tmp_path):
    run("push")
    (tmp_path / "file").write_text("")
    status, output = run("pull", "--directory", tmp_path / "file" / "cache")
    assert status == 1
    assert "Not a directory" in output.splitlines()[-1]


@pytest.fixture
def sgljit(run, capsys):
    """Run a command of ``sgljit`` as ``run`` does."""
    main = pytest.importorskip("sgljit_tools.cli.main", reason="the command is that of sgljit-tools").main

    def sgljit(*arguments):
        status = 0
        try:
            main([*map(str, arguments)])
        except SystemExit as ended:
            status = ended.code or 0
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return sgljit


def test_the_commands_of_sgljit_do_the_same(sgljit, filled, server, key, monkeypatch, tmp_path):
    status, output = sgljit("key", "new", tmp_path / "new", "--days", 3)
    assert (status, f"wrote {tmp_path / 'new'}" in output) == (0, True)
    assert (tmp_path / "new.pub").read_text().startswith("valid-until: ")
    assert sgljit("cache", "push", "norm", "--dry-run")[0] == 0
    assert server.objects == {}
    status, output = sgljit("cache", "push", "norm", "--sign", key)
    assert status == 0
    assert output.endswith(f"3 artifacts are in {server.url}\n")
    assert sgljit("cache", "push", "--name", "llama", "--sign", key)[0] == 0
    assert "cpu-x86_64.norm" in index.parse(server.objects[f"/{index.NAME}"])
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("SGLJIT_TRUSTED_KEYS", str(key.parent / "trusted"))
    status, output = sgljit("cache", "pull", "norm")
    assert status == 0
    assert output.endswith(f"3 artifacts are new in {tmp_path / 'other'}, 0 were there, 0 were refused\n")
    assert sgljit("cache", "pull", "--name", "llama")[0] == 0
    assert files(tmp_path / "other") == files(filled)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("pull", "--name", "a", "norm"), "leave out the families and --target"),
        (("pull", "--name", "a/b"), "--name takes letters, digits, '-' and '_'; got 'a/b'"),
        (
            ("push", "attention"),
            "cache has no such artifact of attention; it has the families moe, norm and the targets",
        ),
    ],
)
def test_wrong_arguments_of_sgljit_are_an_error_too(sgljit, filled, arguments, text):
    status, output = sgljit("cache", *arguments)
    assert status == 1
    assert text in output


def test_a_pull_with_refused_artifacts_ends_with_status_1(sgljit, filled, key, tmp_path, monkeypatch):
    assert sgljit("cache", "push", "norm")[0] == 0
    monkeypatch.setenv("SGLJIT_TRUSTED_KEYS", str(key.parent / "trusted"))
    monkeypatch.setenv("SGLJIT_CACHE_DIR", str(tmp_path / "other"))
    status, output = sgljit("cache", "pull", "norm")
    assert status == 1
    assert "3 were refused" in output


@pytest.mark.parametrize("times", [1, 99])
def test_a_push_adds_its_archives_again_where_another_writes_the_index_without_them(run, filled, server, times):
    others = index.dump([index.Archive("cpu-x86_64.rope", "rope", "cpu-x86_64", 1, (MOE.place,))])
    left = [times]

    def beside(handler):
        if handler.command != "PUT" or handler.path != f"/{index.NAME}" or not left[0]:
            return False
        left[0] -= 1
        handler.server.objects[handler.path] = others
        handler.send_response(201)
        handler.end_headers()
        return True

    server.fault = beside
    status, output = run("push", "norm")
    archives = sorted(index.parse(server.objects[f"/{index.NAME}"]))
    if times == 1:
        assert (status, archives) == (0, ["cpu-x86_64.norm", "cpu-x86_64.rope"])
    else:
        assert (status, archives) == (1, ["cpu-x86_64.rope"])
        assert f"{server.url} does not keep cpu-x86_64.norm in its index, as others write it; push again" in output


def test_a_pull_and_an_import_replace_what_is_damaged(run, filled, tmp_path):
    run("push")
    run("export", tmp_path / "all.zip")
    other = tmp_path / "other"
    run("pull", "--directory", other)
    for command in (("pull",), ("import", tmp_path / "all.zip")):
        damaged = other / NORMS[1].place / "module.so"
        damaged.write_bytes(damaged.read_bytes()[:10])
        status, output = run(*command, "--directory", other)
        assert (status, damaged.read_bytes()) == (0, NORMS[1].payload), output


def test_a_store_that_cannot_be_written_is_an_error_at_once_and_named_once(run, filled, tmp_path, monkeypatch):
    """A file system that is mounted to be read takes nothing later either."""

    def refuse(self, mode="r", *args, **kwargs):
        if "x" not in mode:
            return opened(self, mode, *args, **kwargs)
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    opened = Path.open
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("SGLJIT_REMOTE", str(tmp_path / "store"))
    monkeypatch.setattr(Path, "open", refuse)
    with within(1):
        status, output = run("push")
    assert status == 1
    assert output.count("cannot be written (Read-only file system)") == 1
