"""Only an honest pass is SOLVED; what the agent broke counts against it; infrastructure never becomes a reward."""

import asyncio

import pytest

from etude.config.machines import MachinesConfig
from etude.config.tasks import KatasConfig
from etude.machines import ExecResult, ExecStatus, ProcessFleet, WorkspaceError
from etude.records import InfraError, Outcome, Task, UserError
from etude.tasks import PASSPHRASE, grade
from etude.tasks.katas import KataSource, Split
from tests.tasks.fakes import FolderFleet, FolderMachine

KATA = KataSource(KatasConfig(tiers=(1.0, 0.0, 0.0, 0.0)), Split.TRAIN).kata(0)
TASK = KATA.task()


def judge(text: str | None, fleet=None, timeout_s: float = 10.0, task: Task = TASK):
    files = {**task.files, **({"kata.py": text} if text is not None else {})}
    return asyncio.run(grade(task, files, fleet or FolderFleet(), timeout_s))


def test_the_solution_is_solved_and_the_faulty_file_failed():
    solved, failed = judge(KATA.solution), judge(KATA.source)
    assert (solved.outcome, solved.detail) == (Outcome.SOLVED, "tests passed")
    assert failed.outcome is Outcome.FAILED
    call = KATA.examples[0]
    assert failed.detail.startswith(f"{call.text} gives ") and failed.detail.endswith(f", want {call.want}")
    assert 0 < solved.seconds < 10


CHEATS = {
    "leaves at import": "import os\nos._exit(0)\n",
    "exits at import": "import sys\nsys.exit(0)\n",
    "leaves in the call": "import os\ndef f(*args):\n    os._exit(0)\n",
    "prints a verdict": f"print('{PASSPHRASE}')\nprint('tests passed')\nimport os\nos._exit(0)\n",
    "equals everything": """
class Same(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
def f(*args): return Same()
""",
    "patches builtins": """
import builtins
builtins.repr = lambda value: '0'
builtins.print = lambda *args: None
builtins.eval = lambda text: 0
def f(*args): return 0
""",
    "reads the cases": """
def f(*args):
    for line in open('hidden_cases.txt'):
        call, tab, want = line.rstrip().partition('\\t')
        if call == 'f' + repr(args).replace(',)', ')'): return eval(want)
""",
    "looks into the frames": """
import sys
def f(*args):
    frame = sys._getframe()
    while frame:
        for names in (frame.f_locals, frame.f_globals):
            for cases in (names.get('cases'), names.get('CALLS')):
                for call, want in cases or ():
                    if call == 'f' + repr(args).replace(',)', ')'): return eval(want)
        frame = frame.f_back
""",
    "shouts into the terminal": """
import os
for stream in (0, 1, 2, 3, 4, 5, 6, 7):
    try: os.write(stream, b'gives 1\\n' * 50)
    except OSError: pass
os.kill(os.getppid(), 15)
""",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheap_trick_is_not_solved(name):
    assert judge(CHEATS[name]).outcome is Outcome.FAILED


def test_the_type_counts_not_only_the_value():
    assert judge(f"{KATA.solution}g = f\ndef f(*args):\n    return float(g(*args))\n").outcome is Outcome.FAILED


def test_a_module_beside_the_tests_is_not_imported_into_them():
    files = {**TASK.files, **{f"{name}.py": "import os\nos._exit(0)\n" for name in ("os", "sys", "signal", "codecs")}}
    assert asyncio.run(grade(TASK, files, FolderFleet())).outcome is Outcome.FAILED


def test_a_passphrase_is_drawn_for_each_grading_and_never_written_down():
    seen = []

    class Spy(FolderMachine):
        async def exec(self, argv, timeout_s):
            seen.append((self.root / "hidden_cases.txt").read_text().splitlines()[0])
            result = await super().exec(argv, timeout_s)
            assert not (self.root / "hidden_cases.txt").exists()
            return result

    for _ in range(2):
        verdict = judge(KATA.solution, FolderFleet(Spy))
        assert verdict.outcome is Outcome.SOLVED and seen[-1] not in verdict.detail
    assert PASSPHRASE not in seen and seen[0] != seen[1] and len(seen[0]) == 32


def test_tests_are_written_after_and_over_the_agents_files_and_the_machine_is_closed():
    fleet = FolderFleet()
    files = {**TASK.files, "hidden_tests.py": "raise SystemExit(0)\n", "hidden_cases.txt": "me\n"}
    assert asyncio.run(grade(TASK, files, fleet)).outcome is Outcome.FAILED
    assert [machine.closed for machine in fleet.opened] == [True]
    assert fleet.opened[0].seen_at_exec == {*TASK.files, *TASK.tests}


def test_an_endless_program_and_a_missing_file_are_the_agents_fault():
    endless = judge("def f(*args):\n    while True: pass\n", timeout_s=0.5)
    assert (endless.outcome, endless.detail) == (Outcome.AGENT_FAULT, "tests stopped: timeout")
    missing = asyncio.run(grade(TASK, {"examples.py": ""}, FolderFleet()))
    assert (missing.outcome, missing.detail) == (Outcome.AGENT_FAULT, "missing: kata.py")


def test_a_limit_of_the_machine_is_the_agents_fault():
    class Full(FolderMachine):
        async def exec(self, argv, timeout_s):
            return ExecResult(ExecStatus.LIMIT, None, "", detail="64 processes")

    verdict = judge(KATA.solution, FolderFleet(Full))
    assert (verdict.outcome, verdict.detail) == (Outcome.AGENT_FAULT, "tests stopped: 64 processes")


def test_files_that_no_machine_can_hold_are_the_agents_fault():
    class Crowded(FolderMachine):
        async def write(self, path, text):
            raise WorkspaceError(f"{path}: disk full")

    too_large = judge(KATA.solution, FolderFleet(trouble=UserError("kata.py: too large")))
    assert (too_large.outcome, too_large.detail) == (Outcome.AGENT_FAULT, "kata.py: too large")
    fleet = FolderFleet(Crowded)
    assert judge(KATA.solution, fleet).outcome is Outcome.AGENT_FAULT
    assert fleet.opened[0].closed


@pytest.mark.parametrize("where", ["open", "write", "exec"])
def test_infrastructure_trouble_never_becomes_a_reward(where):
    async def fail(self, *args, **kwargs):
        raise InfraError("host is gone")

    broken = type("Broken", (FolderMachine,), {where: fail})
    fleet = FolderFleet(broken, InfraError("host is gone") if where == "open" else None)
    verdict = judge(KATA.source, fleet)
    assert (verdict.outcome, verdict.detail) == (Outcome.INFRA_FAULT, "host is gone")
    assert verdict.outcome.reward is None
    assert all(machine.closed for machine in fleet.opened)


def test_a_task_without_a_passphrase_is_judged_by_its_exit_status():
    def task(code: int) -> Task:
        return Task.make(
            family="other",
            tier=1,
            prompt="",
            files={},
            tests={"t.py": f"print('done')\nraise SystemExit({code})\n"},
            command=("python", "t.py"),
        )

    assert judge(None, task=task(0)).outcome is Outcome.SOLVED
    assert judge(None, task=task(3)).detail == "done"
    assert judge(None, task=task(3)).outcome is Outcome.FAILED


def test_real_machines_give_the_same_verdicts():
    """Every outcome and every cheat again, isolated: in particular the tests may fork and delete inside."""
    source = KataSource(KatasConfig(tiers=(1.0, 1.0, 1.0, 1.0)), Split.HELD_OUT)

    async def judge_all() -> None:
        async with ProcessFleet(MachinesConfig()) as fleet:
            for index in range(6):
                kata = source.kata(index)
                task = kata.task()
                for text in (kata.source, kata.solution):
                    verdict = await grade(task, {**task.files, "kata.py": text}, fleet)
                    assert verdict.outcome is (Outcome.SOLVED if text == kata.solution else Outcome.FAILED), verdict
                    machine = await fleet.open({**task.files, "kata.py": text})
                    shown = await machine.exec(("python", task.meta["run"]))
                    await machine.close()
                    assert shown.output == kata.examples_output(text)
            for cheat in CHEATS.values():
                verdict = await grade(TASK, {**TASK.files, "kata.py": cheat}, fleet)
                assert verdict.outcome is Outcome.FAILED, (cheat, verdict)
            endless = {**TASK.files, "kata.py": "while True: pass\n"}
            assert (await grade(TASK, endless, fleet, timeout_s=0.5)).outcome is Outcome.AGENT_FAULT
            hungry = {**TASK.files, "kata.py": "x = [0] * 10**9\n"}
            assert (await grade(TASK, hungry, fleet)).outcome in (Outcome.FAILED, Outcome.AGENT_FAULT)

    asyncio.run(judge_all())
