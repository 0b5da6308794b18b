"""One synthetic run for all tests of the room: it is read, never changed."""

from pathlib import Path

import pytest

from etude.report import ReportData, collect, render
from tests.report.synthetic import make_run


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="session")
def data(run_dir: Path) -> ReportData:
    return collect(run_dir)


@pytest.fixture(scope="session")
def page(data: ReportData) -> str:
    return render(data)
