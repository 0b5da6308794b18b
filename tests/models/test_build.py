"""Models come from a config or a Hugging Face folder, and go back into one whole."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from etude.models import RouterTap, build_model, cast_model, load_model, save_model
from etude.records import UserError
from tests.models.tiny import SHAPES, VOCAB, config, some_ids, tiny


def same_state(first: PreTrainedModel, second: PreTrainedModel) -> bool:
    """Whether names, dtypes and bits are equal."""
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(
        one[name].dtype == two[name].dtype and torch.equal(one[name], two[name]) for name in one
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_a_saved_model_loads_bit_for_bit(shape: str, tmp_path: Path) -> None:
    model = tiny(shape)
    save_model(model, tmp_path / "m")
    assert same_state(load_model(tmp_path / "m", "float32"), model)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_is_plain_transformers(shape: str, tied: bool, tmp_path: Path) -> None:
    model = tiny(shape, tie_embeddings=tied)
    save_model(model, tmp_path / "m")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert same_state(plain, model)
    ids = some_ids(2, 9)
    with torch.no_grad():
        torch.testing.assert_close(plain(ids).logits, model(ids).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_seeds_give_equal_bits(shape: str) -> None:
    before = torch.get_rng_state()
    first, second = build_model(config(shape), VOCAB, 3), build_model(config(shape), VOCAB, 3)
    assert same_state(first, second)
    assert not same_state(first, build_model(config(shape), VOCAB, 4))
    assert torch.equal(before, torch.get_rng_state()), "the seed of everything else was touched"


def test_config_json_says_which_router_it_is(tmp_path: Path) -> None:
    save_model(tiny("deepseek_v3"), tmp_path / "d")
    written = json.loads((tmp_path / "d" / "config.json").read_text())
    assert (written["topk_method"], written["scoring_func"]) == ("noaux_tc", "sigmoid")
    assert written["architectures"] == ["DeepseekV3ForCausalLM"]
    save_model(tiny("qwen3_moe"), tmp_path / "q")
    assert "topk_method" not in json.loads((tmp_path / "q" / "config.json").read_text())


def test_layers_and_experts_are_those_of_the_config() -> None:
    tap = RouterTap(tiny("deepseek_v3"))
    assert (tap.n_layers, tap.n_experts, tap.top_k) == (2, 6, 2)
    tap = RouterTap(tiny("qwen3_moe", experts=5, experts_per_token=3))
    assert (tap.n_layers, tap.n_experts, tap.top_k) == (3, 5, 3)


def test_correction_bias_stays_fp32_when_cast(tmp_path: Path) -> None:
    """Kind M 38: near 5 the steps of bf16 are 1/32, which changes the experts of most tokens."""
    model = tiny("deepseek_v3")
    gate = RouterTap(model).routers[0]
    gate.e_score_correction_bias.add_(5)
    exact = gate.e_score_correction_bias.clone()
    save_model(model, tmp_path / "m")
    for cast in (load_model(tmp_path / "m", "bfloat16"), cast_model(model, "bfloat16")):
        bias = RouterTap(cast).routers[0].e_score_correction_bias
        assert bias.dtype == torch.float32
        assert torch.equal(bias, exact)
        assert cast.lm_head.weight.dtype == torch.bfloat16
        save_model(cast, tmp_path / "again")
        again = RouterTap(load_model(tmp_path / "again", "bfloat16")).routers[0].e_score_correction_bias
        assert torch.equal(again, exact)


def test_loaded_and_cast_bf16_weights_have_equal_bits(tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    save_model(model, tmp_path / "m")
    loaded, cast = load_model(tmp_path / "m", "bfloat16"), cast_model(model, "bfloat16")
    ids = some_ids(1, 7)
    assert torch.equal(loaded.lm_head.weight, cast.lm_head.weight)
    assert torch.equal(loaded.model.layers[0].mlp.experts.down_proj, cast.model.layers[0].mlp.experts.down_proj)
    assert loaded(ids).logits.dtype == cast(ids).logits.dtype == torch.bfloat16


def test_files_that_belong_to_a_model_appear_with_it(tmp_path: Path) -> None:
    def also(folder: Path) -> None:
        assert not (tmp_path / "m").exists(), "the folder was visible before it was whole"
        (folder / "tokenizer.txt").write_text("t")

    save_model(tiny(), tmp_path / "m", also)
    assert (tmp_path / "m" / "tokenizer.txt").read_text() == "t"


def test_a_save_that_fails_leaves_the_old_folder(tmp_path: Path) -> None:
    save_model(tiny(seed=1), tmp_path / "m")

    def also(_folder: Path) -> None:
        raise RuntimeError("no tokenizer")

    with pytest.raises(RuntimeError, match="no tokenizer"):
        save_model(tiny(seed=2), tmp_path / "m", also)
    assert same_state(load_model(tmp_path / "m", "float32"), tiny(seed=1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tiny(), tmp_path / "model")
    return tmp_path / "model"


def refused(folder: Path) -> str:
    """The one message that a broken folder gives; it names the folder."""
    with pytest.raises(UserError) as caught:
        load_model(folder, "float32")
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


def test_a_missing_folder_is_one_user_error(tmp_path: Path) -> None:
    assert "config.json is missing" in refused(tmp_path / "nothing")


def test_a_missing_file_is_one_user_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "broken checkpoint" in refused(folder)


@pytest.mark.parametrize("kept", [0, 6, 200, -100])
def test_a_truncated_file_is_one_user_error(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "broken checkpoint" in refused(folder)


def test_a_config_that_is_not_json_is_one_user_error(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "broken checkpoint" in refused(folder)


@pytest.mark.parametrize(
    "name", ["model.norm.weight", "model.layers.1.mlp.gate.e_score_correction_bias", "lm_head.weight"]
)
def test_a_missing_tensor_is_one_user_error(folder: Path, name: str) -> None:
    """Kind: weights that are silently made up. transformers initialises what it does not find and only warns."""
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert name in refused(folder)


def test_a_missing_expert_is_one_user_error(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    refused(folder)


def test_a_tensor_of_another_shape_is_one_user_error(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    refused(folder)
