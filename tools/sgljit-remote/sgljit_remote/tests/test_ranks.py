"""The ranks of a job: one compiles or asks, and all have it. Over gloo, and over NCCL with a GPU for each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from sgljit_remote import index, objects, ranks, stats
from sgljit_remote.errors import RankLostError, RefusedObjectError

from .conftest import files
from .served import artifact

RANKS = 8
JOB = """
import datetime, json, logging, os, sys, time, traceback
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from pathlib import Path
import torch, torch.distributed as dist, tvm_ffi
import sgljit_core
from sgljit_core import load_jit
from sgljit_remote import warm_up

values = []

def work():
    values.clear()
    for value in range(1, 4):
        source = f"int number() {{ return {value}; }}"
        values.append(load_jit("number", str(value), cpp_sources=source, cpp_wrappers=[("number", "number")]).number())

answers, answering = os.pipe()
arrivals, arriving = os.pipe()  # a byte from each rank that is through the barrier

def wait_for_all():
    waiting = int(sys.argv[1])
    while waiting:
        waiting -= len(os.read(arrivals, waiting))

root = os.environ["SGLJIT_CACHE_DIR"]
meeting = f"file://{root}-ranks-{os.getpid()}"  # a rank would take what an earlier job left in the file for an address
children = []
for rank in range(int(sys.argv[1])):
    if child := os.fork():
        children.append(child)
        continue
    os.environ["SGLJIT_CACHE_DIR"] = f"{root}{rank}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=int(sys.argv[1]))
    dist.barrier()
    os.write(arriving, b".")
    start, given, error = time.monotonic(), 0, ""
    try:
        exec(sys.argv[2])
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    stats = sgljit_core.stats()
    said = {"rank": rank, "values": values, "builds": stats.builds, "given": given, "error": error}
    said["seconds"] = time.monotonic() - start
    os.write(answering, f"{json.dumps(said)}\\n".encode())
    os._exit(0)
os.close(answering)
print(open(answers).read())
"""


@pytest.fixture
def job(run):
    """Run a job whose ranks have a cache each; what they say, by rank."""

    def job(code="given = warm_up(work, timeout=60)", count=RANKS, **settings):
        output, _ = run(JOB, str(count), code, cache="rank", **{"SGLJIT_REMOTE": "", **settings})
        return {one["rank"]: one for one in map(json.loads, filter(None, output.split("\n")))}

    return job


@pytest.mark.slow
def test_eight_ranks_with_empty_caches_compile_each_variant_once_in_all(job, tmp_path):
    said = job()
    assert len(said) == RANKS
    assert {tuple(one["values"]) for one in said.values()} == {(1, 2, 3)}
    assert [one["builds"] for one in said.values()].count({"compiled": 3}) == 1
    assert said[0]["builds"] == {"compiled": 3}
    assert all(one["builds"] == {} and one["given"] == 3 for rank, one in said.items() if rank)
    assert all(files(tmp_path / f"rank{rank}") == files(tmp_path / "rank0") for rank in range(RANKS))


def test_one_rank_asks_the_remote(job, run, server, tmp_path):
    run(JOB, "1", "work()", cache="first", SGLJIT_REMOTE="")
    unsigned = {"SGLJIT_REMOTE": server.url, "SGLJIT_REMOTE_UNSIGNED": "1"}
    run(
        f"from sgljit_remote.cli import main; main(['push', '--directory', {str(tmp_path / 'first0')!r}])",
        cache="x",
        **unsigned,
    )
    server.requests.clear()
    said = job(count=3, SGLJIT_CXX="none", PATH="", **unsigned)
    assert {tuple(one["values"]) for one in said.values()} == {(1, 2, 3)}
    assert all(one["builds"] == {} and one["error"] == "" for one in said.values())
    assert len(server.requests) == 2
    assert server.requests[0] == f"GET /{index.NAME}"


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
    "vocab_size": 1000,
}
MODEL = """
given = warm_up(model=".", timeout=300)
from sgljit_core import ops
x = torch.ones(2, 512, dtype=torch.bfloat16)
values = ops["activation"].silu_and_mul(x).shape
"""
ALONE = {"SGLJIT_PLUGINS": "sgljit-activation,sgljit-remote"}


@pytest.mark.slow
def test_of_a_model_each_variant_is_built_once_in_all(job, run, tmp_path):
    pytest.importorskip("sgljit_tools", reason="the builds are those of `sgljit prepare`")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    command = "from sgljit_tools.cli.main import main; import sys; sys.argv[1:] = ['prepare', '--model', '.']; main()"
    run(command, cache="prepared", SGLJIT_REMOTE="", CUDA_VISIBLE_DEVICES="", **ALONE)
    said = job(MODEL, count=4, CUDA_VISIBLE_DEVICES="", **ALONE)
    assert [one["error"] for one in said.values()] == [""] * 4
    assert all(one["values"] == [2, 256] for one in said.values())
    expected = files(tmp_path / "prepared")
    assert len(expected) >= 2
    assert [one["given"] for one in said.values()] == [0, *[len(expected)] * 3]
    assert all(one["builds"] == {} for rank, one in said.items() if rank)
    assert sum(said[0]["builds"].values()) <= len(expected)  # what records the calls builds the host part
    for rank in range(4):
        assert files(tmp_path / f"rank{rank}") == expected


@pytest.mark.slow
def test_a_model_of_which_all_is_loaded_is_handed_over_all_the_same(job, tmp_path):
    pytest.importorskip("sgljit_tools", reason="the builds are those of `sgljit prepare`")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    run_first = "from sgljit_core import ops\nif rank == 0:\n    ops['activation'].silu_and_mul(torch.ones(2, 8))\n"
    said = job(run_first + MODEL, count=2, CUDA_VISIBLE_DEVICES="", **ALONE)
    assert [one["error"] for one in said.values()] == ["", ""]
    assert said[1]["given"] >= 2
    assert said[1]["builds"] == {}


def test_a_call_that_would_do_nothing_is_refused():
    for arguments in ((), (None,)):
        with pytest.raises(TypeError, match="would do nothing: pass work, a function that uses the ops; a model; or "):
            ranks.warm_up(*arguments)


def test_a_model_needs_the_tools(job):
    code = "sys.modules['sgljit_tools.cli.prepare'] = None\ngiven = warm_up(model='/model', timeout=60)"
    said = job(code, count=2)
    text = (
        "warm_up(model='/model') builds what `sgljit prepare` does, which is not installed here (import of "
        "sgljit_tools.cli.prepare halted; None in sys.modules): pip install sgljit-tools on the machine of the first "
        "rank, or pass the calls of the ops as work"
    )
    assert said[0]["error"] == f"ConfigError: {text}"
    assert said[1]["error"].startswith(
        f"WarmUpError: the first rank could not make what this one waited for: ConfigError: {text}"
    )


def test_a_model_that_is_not_there_is_an_error_on_all_ranks(job):
    pytest.importorskip("sgljit_tools", reason="the builds are those of `sgljit prepare`")
    said = job("given = warm_up(model='/nowhere', timeout=60)", count=2)
    assert said[0]["error"].startswith("ModelConfigError: ")
    assert "/nowhere" in said[0]["error"]
    assert said[0]["error"] in said[1]["error"]


@pytest.mark.slow
def test_what_the_first_rank_has_already_is_handed_over_as_well(job, run):
    run(JOB, "1", "work()", cache="rank", SGLJIT_REMOTE="")
    said = job(count=2)
    assert said[0]["builds"] == said[1]["builds"] == {}
    assert said[1]["given"] == 3
    assert said[1]["values"] == [1, 2, 3]


@pytest.mark.slow
def test_a_damaged_artifact_of_a_rank_is_given_anew(job, tmp_path):
    assert job(count=2)[1]["given"] == 3
    damaged = next((tmp_path / "rank1").glob("*/*/*/*/*/*.so"))
    damaged.write_bytes(bytes(100))
    said = job(count=2, SGLJIT_CXX="none", PATH="")
    assert said[1]["given"] == 1
    assert said[1]["values"] == [1, 2, 3]
    assert damaged.stat().st_size > 100


@pytest.mark.slow
def test_a_family_that_another_process_made_is_handed_over(job, run):
    run(JOB, "1", "work()", cache="rank", SGLJIT_REMOTE="")
    (said, other) = job("given = warm_up(lambda: None, families=['_'], timeout=60); rank and work()", count=2).values()
    assert {said["given"], other["given"]} == {0, 3}
    assert said["builds"] == other["builds"] == {}


@pytest.mark.slow
def test_a_rank_whose_cache_takes_no_files_uses_what_it_was_given(job, tmp_path):
    (tmp_path / "rank1").write_text("a file where the cache would be")
    said = job(count=2)
    assert said[1]["values"] == [1, 2, 3]
    assert said[1]["builds"] == {}


@pytest.mark.slow
def test_the_first_rank_of_a_group_need_not_be_the_first_of_the_job(job):
    said = job("nodes = dist.new_group([1, 2])\nif rank: given = warm_up(work, nodes, timeout=60)", count=3)
    assert [one["builds"] for _, one in sorted(said.items())] == [{}, {"compiled": 3}, {}]
    assert [one["given"] for _, one in sorted(said.items())] == [0, 0, 3]
    assert said[2]["values"] == [1, 2, 3]


@pytest.mark.slow
def test_ranks_that_share_a_cache_are_handed_nothing(job):
    said = job("os.environ['SGLJIT_CACHE_DIR'] = root; given = warm_up(work, timeout=60)", count=2)
    assert [one["builds"] for _, one in sorted(said.items())] == [{"compiled": 3}, {}]
    assert [one["given"] for one in said.values()] == [0, 0]
    assert said[1]["values"] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("dying", [0, 2])
def test_a_rank_that_dies_leaves_the_others_with_an_error_in_time(job, dying):
    said = job(f"if rank == {dying}: wait_for_all(); os._exit(1)\nwarm_up(work, timeout=20)", count=4)
    assert set(said) == {0, 1, 2, 3} - {dying}
    for one in said.values():
        assert one["error"].startswith(f"RankLostError: rank {one['rank']} cannot finish the warm-up, as another rank ")
        assert one["seconds"] < 60


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_not_waited_for_beyond_the_limit(job):
    """It is there, and does not come until the other has given up, or for 60 s."""
    code = """
over = Path(f"{root}-over")
if rank:
    try:
        warm_up(work, timeout=1)
    finally:
        over.touch()
while not over.exists() and time.monotonic() < start + 60:
    time.sleep(0.02)
"""
    said = job(code, count=2)
    assert "there is no answer after 1 s" in said[1]["error"]
    assert said[0]["seconds"] < 60


def test_an_operation_that_does_not_begin_is_not_waited_for(tmp_path, monkeypatch):
    """So NCCL's first one does, which meets the other ranks before it is asynchronous."""
    over = threading.Event()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        monkeypatch.setattr(dist, "broadcast", lambda *_, **__: over.wait(120))
        start = time.monotonic()
        with pytest.raises(RankLostError, match=r"rank 0 cannot finish the warm-up.*there is no answer after 0\.5 s"):
            ranks.warm_up(lambda: None, timeout=0.5)
        assert time.monotonic() - start < 60
        monkeypatch.setattr(dist, "broadcast", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ranks.warm_up(lambda: None, timeout=20)
    finally:
        over.set()
        dist.destroy_process_group()


@pytest.mark.slow
def test_work_that_fails_is_an_error_everywhere(job):
    said = job("warm_up(lambda: 1 / 0, timeout=60)", count=3)
    assert said[0]["error"] == "ZeroDivisionError: division by zero"
    for rank in (1, 2):
        assert (
            "WarmUpError: the first rank could not make what this one waited for: ZeroDivisionError"
            in said[rank]["error"]
        )


def test_an_extension_that_may_not_be_loaded_is_an_error(job):
    said = job(count=2, SGLJIT_PLUGINS="sgljit-norm")
    assert "SGLJIT_PLUGINS must name sgljit-remote" in said[0]["error"]
    assert "SGLJIT_PLUGINS must name sgljit-remote" in said[1]["error"]


@pytest.mark.parametrize("what", ["altered", "another", "nothing"])
def test_what_arrives_is_verified(cache, what):
    one = artifact(1)
    content = objects.pack([] if what == "nothing" else [one], None)
    if what == "altered":
        content = content.replace(content[-400:-390], b"0123456789")
    sha256 = artifact(2).manifest.sha256 if what == "another" else one.manifest.sha256
    before = stats().refusals
    with pytest.raises(RefusedObjectError, match=r"is refused and not used|damaged"):
        ranks._keep(content, {one.place: sha256}, cache)
    assert files(cache) == []
    assert stats().refusals == before + 1


NCCL_RANK = """
import json, os, sys, time, traceback
import torch, torch.distributed as dist
import sgljit_core
from sgljit_core import ops
from sgljit_remote import warm_up

rank = int(sys.argv[1])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=sys.argv[2], rank=rank, world_size=2)
x, weight = torch.randn(3, 264, device="cuda"), torch.randn(264, device="cuda")
out = torch.full_like(x, torch.nan)
fails = "dies" in sys.argv or "sleeps" in sys.argv
if "dies" in sys.argv:
    dist.barrier()  # so the communicator is there
if fails and rank:
    sys.exit(1) if "dies" in sys.argv else time.sleep(60)
start = time.monotonic()
try:
    if "model" in sys.argv:
        given = warm_up(model=sys.argv[-1], timeout=120)
        gates = torch.ones(2, 512, dtype=torch.bfloat16, device="cuda")
        assert torch.all(ops["activation"].silu_and_mul(gates) > 0)
        out = torch.nn.functional.rms_norm(x, (264,), weight, 1e-6)
    else:
        given = warm_up(lambda: ops["norm"].rmsnorm(x, weight, out), timeout=10 if fails else 120)
finally:
    print(json.dumps(time.monotonic() - start), flush=True)
    if "sleeps" in sys.argv:
        traceback.print_exc()
        os._exit(1)  # NCCL's own thread still waits
torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (264,), weight, 1e-6))
print(json.dumps([given, sgljit_core.stats().builds]), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def job_of_two_gpus(tmp_path):
    """Run a process on each of two GPUs, with a cache each, over NCCL; returns the processes and what they say."""
    pytest.importorskip("sgljit_norm")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")

    def job(*arguments, **more):
        meeting = f"file://{tmp_path}/ranks"
        ranks = []
        for rank in (0, 1):
            settings = {"SGLJIT_CACHE_DIR": str(tmp_path / f"rank{rank}"), "PYTHONPATH": os.pathsep.join(sys.path)}
            command = [sys.executable, "-c", NCCL_RANK, str(rank), meeting, *arguments]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            ranks.append(subprocess.Popen(command, env={**os.environ, **settings, **more}, **pipes))
        try:
            return ranks, [rank.communicate(timeout=240) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()

    return job


@pytest.mark.gpu
def test_over_nccl_one_rank_compiles_for_the_gpus_of_both(job_of_two_gpus, tmp_path):
    ranks, said = job_of_two_gpus()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    (given, builds), (given_other, builds_other) = (json.loads(output.splitlines()[-1]) for output, _ in said)
    assert given == 0
    assert given_other == builds["compiled"] > 1
    assert builds_other == {}
    assert files(tmp_path / "rank1") == files(tmp_path / "rank0")


@pytest.mark.gpu
def test_over_nccl_one_rank_builds_a_model_for_the_gpus_of_both(job_of_two_gpus, tmp_path):
    pytest.importorskip("sgljit_tools", reason="the builds are those of `sgljit prepare`")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    ranks, said = job_of_two_gpus("model", str(tmp_path), **ALONE)
    assert [rank.returncode for rank in ranks] == [0, 0], said
    (given, builds), (given_other, builds_other) = (json.loads(output.splitlines()[-1]) for output, _ in said)
    assert given == 0
    assert given_other >= builds["compiled"] > 1
    assert builds_other == {}
    assert files(tmp_path / "rank1") == files(tmp_path / "rank0")


@pytest.mark.gpu
def test_over_nccl_a_rank_that_dies_leaves_the_other_with_an_error(job_of_two_gpus):
    ranks, said = job_of_two_gpus("dies")
    assert [rank.returncode for rank in ranks] == [1, 1]
    assert "RankLostError: rank 0 cannot finish the warm-up, as another rank is gone or late" in said[0][1]


@pytest.mark.gpu
def test_over_nccl_a_rank_that_does_not_come_to_the_first_operation_is_not_waited_for(job_of_two_gpus):
    """NCCL makes its communicator in the first operation, and waits for all ranks there, for 10 minutes."""
    _, said = job_of_two_gpus("sleeps")
    assert float(said[0][0].splitlines()[-1]) < 40
    assert "there is no answer after 10 s" in said[0][1]
