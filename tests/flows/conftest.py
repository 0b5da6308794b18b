"""The tiny run is made once and shared: corpus, pretraining, three steps of RL, evaluation."""

from pathlib import Path

import pytest

from etude.runtime import quickstart
from tests.flows.tiny_run import write_configs


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; `run/` below the folder, its configs in `configs/`."""
    root = tmp_path_factory.mktemp("tiny")
    quickstart(write_configs(root))
    return root
