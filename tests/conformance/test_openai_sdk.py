"""The official OpenAI SDK, current and last major version, against the real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.live_servers import Server

SESSION = Path(__file__).with_name("sdk_session.py")
# `make test` installs the older SDK beside the virtual environment's own packages.
OLDER_SDK = Path(sys.prefix) / "openai-2"


@pytest.mark.parametrize("major", [3, 2])
def test_a_session_with_the_sdk(live_server: Server, major: int) -> None:
    environment = dict(os.environ)
    if major == 2:
        assert OLDER_SDK.is_dir(), "`make test` installs the older SDK; run it once"
        environment["PYTHONPATH"] = str(OLDER_SDK)
    result = subprocess.run(
        [sys.executable, str(SESSION), live_server.base_url + "/v1"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    version, word = result.stdout.split()
    assert version.startswith(f"{major}.")
    assert word == "ok"
