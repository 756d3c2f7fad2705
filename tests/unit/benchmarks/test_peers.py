"""Servers under comparison are started, awaited and surely stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.compare_transformers import parse_comparison
from benchmarks.peers.process import Launch, free_port, running
from benchmarks.peers.servers import atom_lite, default_gguf, transformers_serve
from benchmarks.ratios import Measure, markdown_table, ratio_rows
from benchmarks.report import command_line
from benchmarks.stream_client import LoadError

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


def test_ratios_above_one_are_better_and_pair_the_rounds() -> None:
    def visit(ttft: float | None, rate: float) -> list[Measure]:
        return [Measure("ttft", ttft, True), Measure("rate", rate, False)]

    ours = [visit(1.0, 10.0), visit(2.0, 30.0)]
    theirs = [visit(3.0, 5.0), visit(None, 10.0)]
    ttft, rate = ratio_rows(ours, theirs)
    assert (ttft.ours, ttft.theirs, ttft.ratio, ttft.rounds) == (1.5, 3.0, 3.0, 1)
    assert (rate.ratio, rate.rounds) == (2.5, 2)
    page = markdown_table([ttft, rate], "peer")
    assert "| rate | 20 | 7.5 | 2.5 |" in page


def test_a_figure_of_one_side_only_has_no_ratio() -> None:
    (row,) = ratio_rows([[Measure("x", 1.0, True)]], [])
    assert row.ratio is None
    assert "| x | 1 | - | - |" in markdown_table([row], "peer")


def test_keys_do_not_reach_a_report() -> None:
    shown = command_line(["/opt/x/run.py", "--api-key=k1", "--api-key", "k2", "--model", "m"])
    assert shown == "run.py '--api-key=***' --api-key '***' --model m"
    assert os.sep not in shown
