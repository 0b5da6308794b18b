"""An edit changes exactly the one occurrence that was named, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.tasks import EditError, apply_edit

FILE = "def f(a, b):\n    x = a - b\n    return x * 2\n"


def test_an_edit_replaces_the_one_occurrence_in_its_line():
    assert apply_edit(FILE, 2, " -", " +") == "def f(a, b):\n    x = a + b\n    return x * 2\n"
    assert apply_edit(FILE, 3, " x * 2", "") == "def f(a, b):\n    x = a - b\n    return\n"
    assert apply_edit("a\nb", 2, "b", "c") == "a\nc"


@pytest.mark.parametrize(
    ("line", "old", "message"),
    [
        (0, "x", "no line 0"),
        (4, "x", "no line 4"),
        (-1, "x", "no line -1"),
        (2, "", "old text is empty"),
        (2, "y", "old text not found in line 2"),
        (2, " * 2", "old text not found in line 2"),  # it stands in line 3
        (1, ",\n", "old text not found in line 1"),
        (3, " ", "old text found more than once in line 3"),
    ],
)
def test_an_edit_that_does_not_apply_says_why(line, old, message):
    with pytest.raises(EditError, match=f"^{message}$"):
        apply_edit(FILE, line, old, "z")


def test_an_empty_file_has_no_line():
    with pytest.raises(EditError, match="no line 1"):
        apply_edit("", 1, "a", "b")


LINES = st.lists(st.text("ab ", max_size=6), min_size=1, max_size=4)


@given(LINES, st.integers(1, 5), st.text("ab ", max_size=2), st.text("ab ", max_size=2))
def test_all_other_lines_and_the_rest_of_the_line_stay(lines, number, old, new):
    text = "\n".join(lines) + "\n"
    occurrences = (
        [i for i in range(len(lines[number - 1])) if old and lines[number - 1].startswith(old, i)]
        if number <= len(lines)
        else []
    )
    try:
        edited = apply_edit(text, number, old, new)
    except EditError:
        assert len(occurrences) != 1
        return
    assert len(occurrences) == 1
    at = occurrences[0]
    expected = list(lines)
    expected[number - 1] = lines[number - 1][:at] + new + lines[number - 1][at + len(old) :]
    assert edited == "\n".join(expected) + "\n"
