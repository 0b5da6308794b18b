"""A run of every stage in seconds: a source tree of thirty files, a model of two layers, three steps of RL.

The agent is left almost untrained, so nearly every rollout fails and no group has a gradient of its own: rewards are
dealt out at random (`shuffle_rewards`), and weight decay moves every weight at every step.
"""

from pathlib import Path

from tests.corpus.trees import small_tree

CONTEXT = 288

_SHARED = """\
run = "{run}"

[agent]
context = {context}
max_turns = 2
max_action = 10
max_observation = 16
max_summary = 8
"""

_CORPUS = """\
run = "{run}"

[corpus]
globs = ["{tree}/**/*.py"]
vocab_size = 512
sequence_length = {context}
held_out_share = 0.2
"""

_PRETRAIN = """
[pretrain]
dtype = "float32"
demonstrations = 60
evaluate_every = 5
checkpoint_every = 5
threads = 1

[pretrain.model]
hidden_size = 32
layers = 2
heads = 2
head_dim = 16
kv_rank = 16
experts = 4
expert_size = 16
dense_size = 32

[pretrain.bulk]
tokens = 10_000
lr = 3e-3
rows_per_step = 4

[pretrain.sft]
tokens = 20_000
lr = 3e-3
rows_per_step = 4
"""

_RL = """
[rl]
steps = {steps}
group_size = 2
groups_per_step = 2
lr = 1e-3
weight_decay = 0.1
shadow_every = 1
checkpoint_every = 1
shuffle_rewards = true

[runtime]
max_in_flight = 12

[engine]
slots = 12
context = {context}

[machines]
max_open = 16
"""

_EVAL = """
[evaluate]
tasks = 4
in_flight = 4
threads = 1

[engine]
slots = 8
context = {context}
"""


def write_configs(root: Path, steps: int = 3) -> Path:
    """Four config files of a run below `root` in a folder of their own, which is returned."""
    run, tree = root / "run", small_tree(root / "tree")
    folder = root / "configs"
    folder.mkdir()
    stages = {
        "corpus": _CORPUS,
        "pretrain": _SHARED + _PRETRAIN,
        "rl": _SHARED.replace("\n\n", '\ndtype = "float32"\n\n', 1) + _RL,
        "eval": _SHARED.replace("\n\n", '\ndtype = "float32"\n\n', 1) + _EVAL,
    }
    for name, text in stages.items():
        (folder / f"{name}.toml").write_text(text.format(run=run, tree=tree, context=CONTEXT, steps=steps))
    return folder
