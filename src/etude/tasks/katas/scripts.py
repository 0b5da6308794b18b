"""The programs that run beside `kata.py` in a machine: `examples.py` for the agent, `hidden_tests.py` for the grader.

Invariants of the hidden tests:
* the process that imports `kata.py` never holds an expected value or the passphrase. It is forked before they are read,
  and they are deleted from the disk before it goes on; it only sends back the `repr` of each result;
* only the parent, which imports nothing of the agent's, compares and prints the passphrase. Leaving early
  (`os._exit(0)`), printing "passed", objects that equal everything and patched builtins therefore win nothing;
* the parent imports only what Python has loaded before it starts, so that no file beside it is imported in its place.

What this does not stop: code that reads its parent's memory through the kernel. That is the machine's business.
Neither program writes bytecode: a file edited twice within a second, with equal size, would be run from a stale cache.
"""

from etude.tasks.grading import PASSPHRASE
from etude.tasks.katas.evaluate import Call

_EXAMPLES = """\
import sys

sys.dont_write_bytecode = True
CALLS = [
{calls}]
for call, want in CALLS:
    try:
        import kata

        got = "gives " + repr(eval("kata." + call))
    except BaseException as error:
        got = "raises " + type(error).__name__
    if got != "gives " + want:
        print(call + " " + got + ", want " + want)
        sys.exit(1)
print("ok")
"""

_HIDDEN_TESTS = '''\
import os
import sys

CASES = "hidden_cases.txt"


def answer(calls_from, answers_to):
    """The forked child: run the calls against kata.py and send back what they give, a line each."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.dont_write_bytecode = True
    for call in calls_from.read().splitlines():
        try:
            import kata

            got = "gives " + repr(eval("kata." + call))
        except BaseException as error:
            got = "raises " + type(error).__name__
        os.write(answers_to, got.encode() + b"\\n")


def judge(cases, answers_from):
    """The first failing call as a line of text, or None."""
    for call, want in cases:
        got = answers_from.readline(10000).rstrip("\\n") or "ends the program"
        if got != "gives " + want:
            return call + " " + got[:200] + ", want " + want
    return None


calls_out, calls_in = os.pipe()
answers_out, answers_in = os.pipe()
child = os.fork()
if child == 0:
    os.close(calls_in)
    os.close(answers_out)
    try:
        answer(os.fdopen(calls_out, encoding="utf-8"), answers_in)
    finally:
        os._exit(0)
os.close(calls_out)
os.close(answers_in)
with open(CASES, encoding="utf-8") as file:
    passphrase, *lines = file.read().splitlines()
os.unlink(CASES)
cases = [tuple(line.split("\\t")) for line in lines]
with os.fdopen(calls_in, "w", encoding="utf-8") as calls:
    calls.write("\\n".join(call for call, want in cases))
failed = judge(cases, os.fdopen(answers_out, encoding="utf-8", errors="replace"))
os.kill(child, 9)
os.waitpid(child, 0)
print(failed or passphrase)
sys.exit(1 if failed else 0)
'''


def example_files(examples: tuple[Call, ...]) -> dict[str, str]:
    """`examples.py`: prints the first failing example and exits with 1, or prints `ok` and exits with 0."""
    calls = "".join([f"    ({call.text!r}, {call.want!r}),\n" for call in examples])
    return {"examples.py": _EXAMPLES.replace("{calls}", calls)}


def hidden_files(tests: tuple[Call, ...]) -> dict[str, str]:
    """`hidden_tests.py` and its cases: the passphrase, then a line per call with a tab before the expected `repr`."""
    cases = "".join([f"{call.text}\t{call.want}\n" for call in tests])
    return {"hidden_tests.py": _HIDDEN_TESTS, "hidden_cases.txt": f"{PASSPHRASE}\n{cases}"}
