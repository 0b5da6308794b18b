"""The same promises hold when the fleet is started by a user without any privilege."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from etude.machines.process import root

HERE = Path(__file__).parent
NOBODY = str(root.NOBODY)


def uncovered(folders: list[str]) -> list[str]:
    """bwrap arguments that make `folders` reachable although a folder above (such as /root) is closed to others."""
    words: list[str] = []
    for folder in folders:
        above = list(Path(folder).parents)[-2::-1]
        closed = next((parent for parent in above if not parent.stat().st_mode & 1), None)
        if closed is not None:
            words += ["--perms", "0755", "--tmpfs", str(closed)]
            for parent in above[above.index(closed) + 1 :]:
                words += ["--perms", "0755", "--dir", str(parent)]
            words += ["--ro-bind", folder, folder]
    return words


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as an ordinary user already")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_limits_escapes_and_deaths_as_an_ordinary_user(tmp_path: Path) -> None:
    folders = list(dict.fromkeys((sys.base_prefix, sys.prefix, str(HERE.parents[1]))))
    command = [str(root.bwrap_path()), "--dev-bind", "/", "/", *uncovered(folders), "--cap-add", "ALL", "--"]
    command += ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
    command += ["--bounding-set=-all", "--inh-caps=-all"]
    files = [str(HERE / f"test_{name}.py") for name in ("limits", "escapes", "deaths")]
    command += [sys.executable, "-B", "-m", "pytest", "-x", "-k", "not cpu_seconds", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=HERE.parents[1])
    if "Permission denied" in done.stderr and not done.stdout:
        pytest.skip(f"the virtual environment cannot be read by user {NOBODY}: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
