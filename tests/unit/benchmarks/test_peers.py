"""Servers under comparison are started, awaited and surely stopped."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from benchmarks.compare_peers import exit_code, parse_comparison, resumed, setups, silent
from benchmarks.compare_peers import launch as peer_launch
from benchmarks.peer_goals import GOALS, Goal
from benchmarks.peer_report import markdown, rows
from benchmarks.peers import servers
from benchmarks.peers.checkpoints import default_gguf
from benchmarks.peers.environments import RECIPES
from benchmarks.peers.process import Launch, free_port, running
from benchmarks.peers.servers import Serving, atom_lite, transformers_serve
from benchmarks.ratios import Measure, best_peer, median_of, ratio_over
from benchmarks.report import command_line, write_json
from benchmarks.stream_client import LoadError
from benchmarks.visits import Visit

# Answers /health, has a child, and ignores SIGTERM when told so.
SERVER = """
import http.server, signal, subprocess, sys
port, stubborn = int(sys.argv[1]), sys.argv[2] == "stubborn"
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def launch(kind: str = "meek", *, source: str = SERVER, seconds: float = 30.0) -> Launch:
    port = free_port()
    return Launch(
        name="fake",
        command=(sys.executable, "-c", source, str(port), kind),
        base_url=f"http://127.0.0.1:{port}",
        environment={},
        start_seconds=seconds,
    )


@pytest.mark.parametrize("kind", ["meek", "stubborn"])
def test_the_whole_group_is_gone_at_the_end(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.peers.process.STOP_SECONDS", 1.0)
    with running(launch(kind), tmp_path / "log") as server:
        group = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        assert len(group) == 2
        assert server.start_seconds < 30
    gone, alive = psutil.wait_procs(group, timeout=10)
    assert not alive
    assert len(gone) == 2


def test_a_server_that_dies_at_start_shows_its_log(tmp_path: Path) -> None:
    broken = launch(source="raise SystemExit('no such model')")
    message = r"fake ended with code 1 at start: no such model"
    with pytest.raises(LoadError, match=message), running(broken, tmp_path / "log"):
        pass


def test_a_server_that_never_becomes_healthy_is_given_up(tmp_path: Path) -> None:
    silent = launch(source="import signal; signal.pause()", seconds=0.5)
    message = "fake was not healthy after"
    with pytest.raises(LoadError, match=message), running(silent, tmp_path / "log"):
        pass


def test_sigterm_to_the_comparison_stops_its_server(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r})
from pathlib import Path
from benchmarks.peers.process import Launch, exit_on_sigterm, running
exit_on_sigterm()
launch = Launch(name="x", command={launch().command!r}, base_url="", environment={{}})
import benchmarks.peers.process as process
process._is_healthy = lambda url: True
with running(launch, Path({str(tmp_path / "log")!r})) as server:
    print(server.pid, flush=True)
    import signal; signal.pause()
"""
    outer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert outer.stdout is not None
    inner = psutil.Process(int(outer.stdout.readline()))
    outer.send_signal(signal.SIGTERM)
    assert outer.wait(30) == 128 + signal.SIGTERM
    outer.stdout.close()
    assert not psutil.wait_procs([inner], timeout=10)[1]


def test_both_servers_get_the_same_dtype_and_no_network() -> None:
    ours, peer = atom_lite(Path("m.gguf"), "float32"), transformers_serve(Path("dir"), "float32")
    for one in (ours, peer):
        assert one.command[one.command.index("--dtype") + 1] == "float32"
        assert one.environment["HF_HUB_OFFLINE"] == "1"
        assert one.base_url.endswith(one.command[one.command.index("--port") + 1])
    assert "--continuous-batching" in peer.command


def test_the_default_model_lies_in_its_package() -> None:
    assert default_gguf().suffix == ".gguf"
    comparison = parse_comparison(["--quick", "--", "--max-num-seqs", "32"])
    assert comparison.model == default_gguf().resolve()
    assert comparison.server_args == ("--max-num-seqs", "32")


def figures(ttft: float | None, rate: float) -> dict[str, Measure]:
    return {"ttft": Measure("ttft", ttft, True), "rate": Measure("rate", rate, False)}


def test_ratios_above_one_are_better_and_pair_the_rounds() -> None:
    ours = {0: figures(1.0, 10.0), 1: figures(2.0, 30.0), 3: figures(9.0, 1.0)}
    theirs = {0: figures(3.0, 5.0), 1: figures(None, 10.0), 2: figures(9.0, 99.0)}
    ttft, rate = ratio_over(ours, theirs, "ttft"), ratio_over(ours, theirs, "rate")
    assert ttft is not None and (ttft.median, ttft.pairs) == (3.0, 1)
    assert rate is not None and (rate.median, rate.pairs) == (2.5, 2)
    assert median_of(ours, "ttft") == 2.0
    assert ratio_over(ours, {}, "ttft") is None


def test_the_best_peer_is_the_lowest_latency_and_the_highest_rate() -> None:
    peers = {"a": {0: figures(1.0, 10.0)}, "b": {0: figures(2.0, 20.0)}}
    assert best_peer(peers, "ttft") == "a"
    assert best_peer(peers, "rate") == "b"
    assert best_peer(peers, "unknown") is None


def visit_of(server: str, round_: int, rate: float, *failures: str) -> Visit:
    figure = "concurrency, 8 at once: output tokens/s"
    return Visit(
        server=server,
        setup="plain",
        round=round_,
        command=f"{server} --port 1",
        measures=[Measure(figure, rate, False)],
        failures=list(failures),
    )


def test_a_goal_is_judged_against_the_best_peer_of_the_run() -> None:
    visits = [
        *(visit_of("atom_lite", 0, 110.0), visit_of("vllm", 0, 100.0)),
        *(visit_of("atom_lite", 1, 130.0), visit_of("vllm", 1, 100.0)),
        visit_of("llama", 0, 10.0, "single: it broke"),
    ]
    (row,) = rows(visits)
    assert (row["best_peer"], row["required"], row["met"]) == ("vllm", "1.2x best peer", True)
    assert row["ratios"]["llama"]["median"] == 11.0
    page = markdown(
        {
            "rows": [row],
            "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "python": "3", "versions": {}},
            "command": "x",
            "time": "now",
            "model": "m",
            "dtype": "bfloat16",
            "scale": 1.0,
            "seed": 1,
        },
        visits,
    )
    assert "| 120 | 100 | 10 | vllm | 1.200 | 1.2x best peer | yes | 450 |" in page
    assert "- round 0, plain, llama: single: it broke" in page


def answering(server: str, failed: int, *failures: str) -> Visit:
    point = {"requests": 3, "failed": failed}
    workloads = {"single": {"points": [point]}}
    return replace(visit_of(server, 0, 1.0, *failures), workloads=workloads)


def test_servers_that_answered_nothing_are_named_with_the_reason() -> None:
    whole, partly = answering("atom_lite", 0), answering("llama", 2, "one broke")
    assert (exit_code([whole, partly]), silent([whole, partly])) == (0, [])
    dumb, dead = answering("vllm", 3, "HTTP 500:\nbroken"), visit_of("openvino", 0, 1.0, "no start")
    assert exit_code([whole, dumb, dead]) == 1
    assert silent([whole, dumb, dead]) == [
        "vllm answered nothing in setup plain: HTTP 500: broken",
        "openvino answered nothing in setup plain: no start",
    ]
    again = replace(answering("vllm", 1), round=1)
    assert exit_code([whole, dumb, again]) == 0  # one round is enough
    assert exit_code([dumb, dead]) == exit_code([]) == 2


def test_a_limit_needs_no_peer() -> None:
    goal = Goal(setup="plain", figure="x", limit=0.25)
    assert goal.is_met(0.2, None) is True
    assert goal.is_met(0.3, None) is False
    assert goal.is_met(None, None) is None


def test_every_goal_is_about_a_setup_that_exists() -> None:
    comparison = parse_comparison(["--peers", "transformers"])
    assert {goal.setup for goal in GOALS} == {setup.name for setup in setups(comparison)}


def test_only_setups_that_a_server_can_serve_start_it() -> None:
    comparison = parse_comparison(["--peers", "transformers", "--", "--max-num-seqs", "32"])
    started = {
        setup.name: peer_launch("atom_lite", setup, comparison) for setup in setups(comparison)
    }
    assert all(start is not None for start in started.values())
    budget, quantized = started["budget"], started["quantized"]
    assert budget is not None and "--max-num-batched-tokens" in budget.command
    assert quantized is not None and "--dtype" not in quantized.command
    kept = Serving(gguf=Path("m.gguf"), dtype=None)
    assert servers.peer("vllm", kept) is None
    assert servers.peer("transformers", kept) is None


def test_a_peer_that_is_not_installed_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(LoadError, match=r"benchmarks\.peers\.install llama"):
        servers.peer("llama", Serving(gguf=Path("m.gguf"), dtype=None))
    assert not RECIPES["vllm"].is_installed()


def test_unknown_peers_and_workloads_are_named() -> None:
    with pytest.raises(LoadError, match=r"--peers: .'ollama'. are none of openvino"):
        parse_comparison(["--peers", "ollama"])
    with pytest.raises(LoadError, match=r"--workloads: .'x'. are none of single"):
        parse_comparison(["--workloads", "x"])


def test_a_resumed_run_knows_its_visits_and_refuses_others(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    flags = ["--peers", "transformers", "--output", str(tmp_path / "out")]
    comparison = parse_comparison([*flags, "--seed", "5"])
    done = visit_of("vllm", 2, 1.0)
    kept = {"model": comparison.model.name, "dtype": "bfloat16", "scale": 1.0, "seed": 5}
    write_json(path, kept | {"visits": [asdict(done)]})
    assert [one.key for one in resumed(path, comparison)] == [("plain", "vllm", 2)]
    assert parse_comparison([*flags, "--resume"]).seed == 5
    with pytest.raises(LoadError, match="has another dtype"):
        resumed(path, parse_comparison([*flags, "--seed", "5", "--dtype", "float32"]))


def test_keys_do_not_reach_a_report() -> None:
    shown = command_line(["/opt/x/run.py", "--api-key=k1", "--api-key", "k2", "--model", "m"])
    assert shown == "run.py '--api-key=***' --api-key '***' --model m"
    assert os.sep not in shown
