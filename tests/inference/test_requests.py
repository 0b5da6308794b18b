"""A request that cannot be served is refused to its sender; whoever shares the engine never notices."""

import numpy as np
import pytest

from etude.inference import Request
from etude.records import UserError
from tests.inference.drive import ask, engine, expect, ids, run
from tests.models.tiny import tiny

BAD = {
    "empty": (ask("bad", ids(0)), "request of 0 tokens"),
    "too long": (ask("bad", ids(64)), "request of 64 tokens, but the engine's context holds 64"),
    "beyond the vocabulary": (ask("bad", np.array([3, 96], np.int32)), "3 to 96, .*vocabulary is 0 to 95"),
    "negative id": (ask("bad", np.array([-1, 3], np.int32)), "-1 to 3"),
    "other dtype": (ask("bad", np.array([1, 2], np.int64)), "int64"),
    "two axes": (ask("bad", np.array([[1, 2]], np.int32)), r"\[1, 2\]"),
    "no tokens wanted": (ask("bad", ids(3), 0), "max_tokens is 0"),
    "temperature below 0": (ask("bad", ids(3), temperature=-0.5), "temperature is -0.5"),
    "temperature NaN": (ask("bad", ids(3), temperature=float("nan")), "temperature is nan"),
    "temperature infinite": (ask("bad", ids(3), temperature=float("inf")), "temperature is inf"),
    "negative seed": (ask("bad", ids(3), seed=-1), "seed is -1"),
    "routes from before the start": (ask("bad", ids(3), routes_from=-1), "routes_from is -1"),
    "routes from after the end": (ask("bad", ids(3), routes_from=4), "routes_from is 4"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD.values(), ids=BAD.keys())
def test_a_bad_request_is_refused_and_leaves_no_trace(bad: Request, reason: str) -> None:
    """Kind: one bad request breaks the pass that all share."""
    model = tiny()
    local = engine(model)
    good = [ask("a", ids(5)), ask("b", ids(9, seed=1), seed=1)]
    local.submit(good[0])
    with pytest.raises(UserError, match=reason) as caught:
        local.submit(bad)
    assert "session bad" in str(caught.value)
    answers = run(local, good[1])
    assert answers.keys() == {"a", "b"}
    expect(model, answers, good)


def test_the_largest_request_that_fits_is_served() -> None:
    model = tiny()
    request = ask("a", ids(63), 10, seed=(1 << 64) - 1, routes_from=63)
    answer = run(engine(model), request)
    expect(model, answer, [request])
    assert len(answer["a"].ids_N) == 1
    assert len(answer["a"].routes_RLK) == 0
