"""What settings of other engines mean here: names, defaults, values that are off, and what has no equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.front.odd_values import ODD, Contrary
from unspool import Beam, BeamSample, Contrastive, DiverseBeam, DoLa
from unspool.errors import ParameterError
from unspool.params import SamplingParams
from unspool.sampling.presets import PRESETS
from unspool.translation import from_llama_cpp, from_openai, from_transformers, from_vllm, llama_cpp
from unspool.translation import openai as openai_module
from unspool.translation import transformers as transformers_module
from unspool.translation import vllm as vllm_module
from unspool.translation.reading import Reading

Translation = Callable[[Mapping[str, Any]], dict[str, Any]]


def part(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: settings.get(name) for name in names}


@pytest.mark.parametrize("translate", [from_transformers, from_vllm, from_llama_cpp, from_openai])
def test_nothing_given_is_what_the_engine_does_by_default(translate: Translation) -> None:
    names = ("order", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "n")
    expected = {
        from_transformers: ("transformers", 0.0, 0, 1.0, 0.0, 1.0, 20, 1),
        from_vllm: ("vllm", 1.0, 0, 1.0, 0.0, 1.0, 16, 1),
        from_llama_cpp: ("llama.cpp", 0.8, 40, 0.95, 0.05, 1.0, None, 1),
        from_openai: (None, 1.0, 0, 1.0, 0.0, 1.0, None, 1),
    }[translate]
    settings = translate({})
    assert tuple(part(settings, *names).values()) == expected
    SamplingParams(**settings)


@pytest.mark.parametrize("translate", [from_transformers, from_vllm, from_llama_cpp, from_openai])
def test_all_that_has_no_equal_is_named_in_one_error(translate: Translation) -> None:
    wrong: dict[Any, dict[str, Any]] = {
        from_transformers: {"token_healing": True, "max_time": 1.5, "max_length": 90, "do_smaple": True},
        from_vllm: {"structured_outputs": {"regex": "a"}, "logprobs": -1, "use_beam_search": True, "topk": 3},
        from_llama_cpp: {"grammar": "root ::= 1", "min_keep": 3, "samplers": ["infill"], "tmep": 1.0},
        from_openai: {"response_format": {"type": "json_object"}, "tools": [{}], "best_of": 3, "model": "m"},
    }
    with pytest.raises(ParameterError) as error:
        translate({**wrong[translate], "temperature": 0.7})
    for name in wrong[translate]:
        assert name in str(error.value)
    assert "temperature" not in str(error.value)


@pytest.mark.parametrize("translate", [from_transformers, from_vllm, from_llama_cpp, from_openai])
def test_settings_at_their_off_value_are_not_refused(translate: Translation) -> None:
    off: dict[Any, dict[str, Any]] = {
        from_transformers: {
            "num_beams": 1,
            "guidance_scale": None,
            "output_scores": False,
            "use_cache": True,
        },
        from_vllm: {"top_k": -1, "best_of": 1, "structured_outputs": None, "detokenize": True, "seed": -1},
        from_llama_cpp: {
            "grammar": "",
            "min_keep": 0,
            "lora": [],
            "stream": True,
            "seed": -1,
            "n_predict": -1,
        },
        from_openai: {"tools": None, "response_format": {"type": "text"}, "user": "me", "logprobs": False},
    }
    assert translate(off[translate]) == translate({})


@pytest.mark.parametrize("translate", [from_transformers, from_vllm, from_llama_cpp, from_openai])
def test_what_is_no_number_or_no_mapping_is_refused(translate: Translation) -> None:
    for value in ("hot", True, math.nan, [0.5]):
        with pytest.raises(ParameterError, match="temperature="):
            translate({"temperature": value})
    with pytest.raises(ParameterError, match="must be a mapping"):
        translate(3)  # type: ignore[arg-type]


def test_transformers_greedy_text_passes_over_what_shapes_a_draw() -> None:
    settings = from_transformers({"do_sample": False, "temperature": 0.6, "top_p": 0.9, "typical_p": 0.5})
    assert settings == from_transformers({})


def test_transformers_sampling_has_its_names_and_defaults() -> None:
    settings = from_transformers(
        {
            "do_sample": True,
            "temperature": 0.6,
            "eta_cutoff": 3e-4,
            "epsilon_cutoff": 1.0,
            "min_new_tokens": 5,
            "min_length": 90,
            "max_new_tokens": 50,
            "max_length": 4096,
            "stop_strings": ["END"],
            "eos_token_id": [2, 7],
            "num_return_sequences": 3,
            "repetition_penalty": 1.1,
            "no_repeat_ngram_size": 3,
            "bad_words_ids": [[2], [4, 5]],
            "suppress_tokens": [9],
            "sequence_bias": {(8,): -2.0},
            "_from_model_config": True,
            "transformers_version": "5.24.0",
        }
    )
    assert settings == {
        "order": "transformers",
        "penalty_scope": {"repetition_penalty": "all", "no_repeat_ngram": "all"},
        "temperature": 0.6,
        "top_k": 50,
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "epsilon_cutoff": 0.0,  # 1 is off there
        "eta_cutoff": 3e-4,
        "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
        "bad_words": ((4, 5), (9,)),  # an end of text alone is no bad word there
        "logit_bias": ((8, -2.0),),
        "min_tokens": 5,
        "max_tokens": 50,
        "stop": ("END",),
        "include_stop": True,
        "stop_token_ids": (2, 7),
        "n": 3,
    }
    SamplingParams(**settings)


def test_a_bias_of_a_sequence_of_tokens_has_no_equal() -> None:
    with pytest.raises(ParameterError, match="sequence_bias of more than one token"):
        from_transformers({"sequence_bias": [[[1, 2], -3.0]]})


def test_a_generation_config_is_taken_as_it_is() -> None:
    transformers: Any = pytest.importorskip("transformers", reason="the oracle is in the extra `peers`")
    config = transformers.GenerationConfig(do_sample=True, top_p=0.9, max_new_tokens=7, eos_token_id=2)
    settings = SamplingParams.from_transformers(config)
    assert (settings.top_p, settings.top_k, settings.max_tokens, settings.order) == (
        0.9,
        50,
        7,
        "transformers",
    )
    assert from_transformers(transformers.GenerationConfig()) == from_transformers({})
    with pytest.raises(
        ParameterError, match=r"token_healing=True, max_time=2\.0|max_time=2\.0, token_healing"
    ):
        from_transformers(transformers.GenerationConfig(token_healing=True, max_time=2.0))
    beams = transformers.GenerationConfig(num_beams=3, length_penalty=0.5, early_stopping="never")
    assert SamplingParams.from_transformers(beams).strategy == Beam(3, 0.5, "never")


@pytest.mark.parametrize(
    ("given", "strategy"),
    [
        ({"num_beams": 4}, Beam(4)),
        ({"num_beams": 4, "do_sample": True, "early_stopping": True}, BeamSample(4, 1.0, True)),
        ({"num_beams": 4, "do_sample": True}, BeamSample(4, 1.0, False)),
        ({"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.2}, DiverseBeam(6, 3, 0.2)),
        (
            {"num_beams": 2, "force_words_ids": [[3, 4], [[5], [6, 7]]]},
            Beam(2, force_words=[[3, 4], [[5], [6, 7]]]),
        ),
        ({"penalty_alpha": 0.6, "top_k": 5}, Contrastive(5, 0.6)),
        ({"penalty_alpha": 0.6, "top_k": 5, "do_sample": True}, None),
        ({"num_beams": 1, "length_penalty": 2.0}, None),
    ],
)
def test_searches_of_transformers_are_ours(given: dict[str, Any], strategy: Any) -> None:
    assert SamplingParams.from_transformers(given).strategy == strategy


def test_what_rows_are_made_of_in_transformers_is_too() -> None:
    assert SamplingParams.from_transformers({"dola_layers": "low"}).source == DoLa("low")
    assert SamplingParams.from_transformers({"guidance_scale": 1.5}).guidance_scale == 1.5
    with pytest.raises(ParameterError, match="a multiple of it"):
        SamplingParams.from_transformers({"num_beams": 5, "num_beam_groups": 3, "diversity_penalty": 0.2})


def test_vllm_has_its_names_and_boundaries() -> None:
    settings = from_vllm(
        {
            "temperature": 0.001,
            "top_k": -1,
            "presence_penalty": 0.5,
            "max_tokens": None,
            "include_stop_str_in_output": True,
            "stop": "END",
            "logprobs": True,
            "prompt_logprobs": 0,
            "bad_words": ["no"],
            "allowed_token_ids": [1, 2],
            "min_tokens": 3,
            "logit_bias": {"5": 1.0},
            "seed": 4,
        }
    )
    assert settings["temperature"] == 0.01  # below that vLLM takes it there
    assert settings["top_k"] == 0
    assert "max_tokens" not in settings
    assert part(settings, "include_stop", "stop", "logprobs", "prompt_logprobs", "seed", "min_tokens") == {
        "include_stop": True,
        "stop": ("END",),
        "logprobs": 1,
        "prompt_logprobs": 0,
        "seed": 4,
        "min_tokens": 3,
    }
    scopes = {"repetition_penalty": "all", "frequency_penalty": "output", "presence_penalty": "output"}
    assert settings["penalty_scope"] == scopes
    params = SamplingParams(**settings)
    assert params.logit_bias == ((5, 1.0),)


def test_vllm_at_temperature_0_is_greedy() -> None:
    assert from_vllm({"temperature": 0})["temperature"] == 0


def test_llama_cpp_names_of_server_and_command_line_mean_the_same() -> None:
    server = {
        "temperature": 0.5,
        "typical_p": 0.9,
        "repeat_penalty": 1.2,
        "repeat_last_n": 32,
        "top_n_sigma": 1.5,
        "n_predict": 9,
        "mirostat_tau": 4.0,
    }
    line = {
        "--temp": 0.5,
        "--typical": 0.9,
        "--repeat-penalty": 1.2,
        "--repeat-last-n": 32,
        "--top-nsigma": 1.5,
        "--n-predict": 9,
        "--mirostat-ent": 4.0,
    }
    settings = from_llama_cpp(server)
    assert settings == from_llama_cpp(line)
    assert settings["penalty_scope"] == {
        "repetition_penalty": 32,
        "frequency_penalty": 32,
        "presence_penalty": 32,
        "dry": 64,
    }
    assert settings["top_n_sigma"] == 1.5
    SamplingParams(**settings)
    with pytest.raises(ParameterError, match="temperature and temp "):
        from_llama_cpp({"temp": 1.0, "temperature": 0.5})


def test_llama_cpp_off_values_are_off() -> None:
    off = {"top_k": -1, "top_n_sigma": 0, "temperature": -1.0, "xtc_probability": 0.5, "xtc_threshold": 0.6}
    settings = from_llama_cpp({**off, "repeat_last_n": 0, "repeat_penalty": 1.3, "dry_multiplier": 0.0})
    assert part(settings, "top_k", "top_n_sigma", "temperature", "xtc_probability", "repetition_penalty") == {
        "top_k": 0,
        "top_n_sigma": None,
        "temperature": 0.0,
        "xtc_probability": 0.0,
        "repetition_penalty": 1.0,
    }
    assert settings["penalty_scope"] == {"dry": 64}
    SamplingParams(**settings)


def test_llama_cpp_dry_and_dynamic_temperature_bring_their_companions() -> None:
    settings = from_llama_cpp(
        {
            "dry_multiplier": 0.8,
            "dry_base": 0.5,
            "dry_penalty_last_n": -1,
            "dry_sequence_breakers": ["\n"],
            "dynatemp_range": 0.3,
        }
    )
    assert settings["dry_base"] == 1.75  # as its server takes what is below 1
    assert settings["penalty_scope"]["dry"] == "all"
    assert settings["dry_sequence_breakers"] == ("\n",)
    assert (settings["temperature"], settings["dynatemp_range"], settings["dynatemp_exponent"]) == (
        0.8,
        0.3,
        1.0,
    )
    SamplingParams(**settings)


def test_llama_cpp_mirostat_leaves_out_all_rules_but_temperature() -> None:
    settings = from_llama_cpp({"mirostat": 2, "top_k": 5, "repeat_penalty": 1.5, "dynatemp_range": 0.2})
    assert part(settings, "order", "mirostat", "mirostat_tau", "temperature", "top_k", "top_p", "min_p") == {
        "order": "llama.cpp",
        "mirostat": 2,
        "mirostat_tau": 5.0,
        "temperature": 0.8,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
    }
    assert settings["repetition_penalty"] == 1.0
    assert "dynatemp_range" not in settings
    SamplingParams(**settings)


@pytest.mark.parametrize(
    "samplers", [["temp", "Min-P", "adaptive-p", "top-k"], "tmak", "temperature;min_p;adaptive_p;top_k"]
)
def test_llama_cpp_samplers_are_an_order(samplers: Any) -> None:
    settings = from_llama_cpp({"samplers": samplers, "adaptive_target": 0.4, "repeat_penalty": 1.5})
    order = ("logit_bias", "minimum_tokens", "temperature", "min_p", "top_k", "adaptive_p")
    assert settings["order"] == order
    assert part(settings, "top_p", "repetition_penalty", "adaptive_target", "adaptive_decay") == {
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "adaptive_target": 0.4,
        "adaptive_decay": 0.9,
    }
    SamplingParams(**settings)


def test_llama_cpp_default_samplers_are_its_preset() -> None:
    samplers = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
    assert from_llama_cpp({"samplers": samplers}) == from_llama_cpp({})
    assert "adaptive_target" not in from_llama_cpp({"adaptive_target": 0.4})  # it is not among them


def test_llama_cpp_biases_take_every_form_of_its_server() -> None:
    pairs = from_llama_cpp({"logit_bias": [[5, 1.5], [7, False], [5, 0.5]], "ignore_eos": True})
    assert pairs["logit_bias"] == ((5, 2.0), (7, -math.inf))
    assert pairs["suppress_eos"] is True
    assert from_llama_cpp({"logit_bias": {"5": -1}})["logit_bias"] == ((5, -1.0),)
    SamplingParams(**pairs)
    for wrong in ([["word", 1.0]], [["5", 1.0]], {"5": True}, [5], 3):
        with pytest.raises(ParameterError, match="logit_bias"):
            from_llama_cpp({"logit_bias": wrong})


def test_openai_requests_are_in_the_default_order() -> None:
    settings = from_openai(
        {
            "temperature": 0.3,
            "frequency_penalty": 0.5,
            "max_completion_tokens": 40,
            "logprobs": True,
            "top_logprobs": 3,
            "stop": ["a", "b"],
            "n": 2,
            "logit_bias": {"50256": -100},
            "seed": 1,
        }
    )
    assert settings == {
        "temperature": 0.3,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.0,
        "penalty_scope": "output",
        "logit_bias": ((50256, -100.0),),
        "max_tokens": 40,
        "stop": ("a", "b"),
        "seed": 1,
        "n": 2,
        "logprobs": 3,
    }
    assert SamplingParams(**settings).logit_bias == ((50256, -100.0),)
    assert from_openai({"logprobs": 4})["logprobs"] == 4  # of completions


def test_every_translated_scope_is_of_a_rule_in_the_order() -> None:
    for translate, engine in ((from_transformers, "transformers"), (from_vllm, "vllm")):
        assert set(translate({})["penalty_scope"]) <= set(PRESETS[engine].order)


@pytest.mark.parametrize("given", [{"top_logprobs": 5}, {"logprobs": False, "top_logprobs": 5}])
def test_openais_top_logprobs_need_its_logprobs(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="top_logprobs=5"):
        SamplingParams.from_openai(given)
    assert SamplingParams.from_openai({"logprobs": True, "top_logprobs": 5}).logprobs == 5


def test_a_setting_that_comes_twice_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"top_k \(given twice\)"):
        SamplingParams.from_llama_cpp({"top-k": 3, "top_k": 7})


@pytest.mark.parametrize("name", ["-n", "--predict", "--n-predict", "n_predict", "predict"])
def test_llama_cpp_limits_tokens_by_each_name_of_it(name: str) -> None:
    params = SamplingParams.from_llama_cpp({name: 50})
    assert (params.max_tokens, params.n) == (50, 1)


def test_llama_cpp_letters_are_its_command_lines_only_after_a_dash() -> None:
    assert SamplingParams.from_llama_cpp({"n": 5}).n == 5  # of a request to its server
    assert SamplingParams.from_llama_cpp({"-s": 7}).seed == 7
    assert SamplingParams.from_llama_cpp({"-l": {3: 1.5}}).logit_bias == ((3, 1.5),)
    for name in ("--n", "--s", "-x", "-", "s"):
        with pytest.raises(ParameterError, match=rf"llama.cpp: {name} \(unknown\)"):
            from_llama_cpp({name: 5})
    with pytest.raises(ParameterError, match=r"json_schema=\{'type': 'object'\}"):
        from_llama_cpp({"-j": {"type": "object"}})
    with pytest.raises(ParameterError, match=r"n_predict \(given twice\)"):
        from_llama_cpp({"-n": 5, "--n-predict": 6})
    with pytest.raises(ParameterError, match="n_predict and predict "):
        from_llama_cpp({"-n": 5, "--predict": 6})


MODULES: dict[Any, Any] = {
    from_transformers: transformers_module,
    from_vllm: vllm_module,
    from_llama_cpp: llama_cpp,
    from_openai: openai_module,
}
METHODS: dict[Any, Callable[[Any], SamplingParams]] = {
    from_transformers: SamplingParams.from_transformers,
    from_vllm: SamplingParams.from_vllm,
    from_llama_cpp: SamplingParams.from_llama_cpp,
    from_openai: SamplingParams.from_openai,
}
SWITCHES: dict[Any, dict[str, Any]] = {
    from_transformers: {"do_sample": True, "eos_token_id": 2},
    from_vllm: {"max_tokens": None},
    from_llama_cpp: {"dry_multiplier": 0.8, "dynatemp_range": 0.5, "samplers": ["dry", "temperature"]},
    from_openai: {"logprobs": True},
}
"""What makes a translation look at settings that it would pass over."""


def known_names(translate: Translation, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of all settings that a translation knows."""
    asked: set[str] = set(MODULES[translate].INERT)
    take = Reading.take

    def recorded(reading: Reading, *names: str, default: Any = None) -> Any:
        asked.update(names)
        return take(reading, *names, default=default)

    with monkeypatch.context() as patch:
        patch.setattr(Reading, "take", recorded)
        translate({})
    return asked


@pytest.mark.parametrize("translate", MODULES)
def test_whatever_a_setting_is_nothing_but_a_parameter_error_comes(
    translate: Translation, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = known_names(translate, monkeypatch)
    assert {"temperature", "stop_strings" if translate is from_transformers else "stop"} < names
    assert names >= set(MODULES[translate].OFF)
    refused: list[ParameterError] = []
    for name in names:
        for value in ODD:
            for switches in ({}, SWITCHES[translate]):
                try:
                    METHODS[translate]({**switches, name: value})
                except ParameterError as error:
                    refused.append(error)
    assert max(len(str(error)) for error in refused) < 2000
    assert len(refused) > len(names - set(MODULES[translate].INERT)) * len(ODD)  # of twice as many, most


@pytest.mark.parametrize("translate", MODULES)
def test_a_name_that_is_none_is_refused(translate: Translation) -> None:
    for name in (1, None, (), 10**5000, b"temperature"):
        with pytest.raises(ParameterError, match=r"\(not a name\), zzz \(unknown\)"):
            translate({name: 2, "zzz": 1})  # type: ignore[dict-item]
    with pytest.raises(ParameterError, match=r"'xxxx.*\.\.\. \(unknown\)") as error:
        translate({"x" * 10**5: 1})
    assert len(str(error.value)) < 200


class Unwilling:
    def to_dict(self) -> dict[str, Any]:
        raise RuntimeError("no")


class Wordy:
    def to_dict(self) -> str:
        return "temperature"


@pytest.mark.parametrize("translate", MODULES)
@pytest.mark.parametrize(
    "settings", [Unwilling, Wordy, Unwilling(), Wordy(), None, "x", [("n", 1)], Contrary()]
)
def test_what_has_no_settings_is_refused(translate: Translation, settings: Any) -> None:
    with pytest.raises(ParameterError, match=r"must be a mapping|has no settings of"):
        translate(settings)


def test_the_class_of_a_generation_config_is_none() -> None:
    transformers: Any = pytest.importorskip("transformers", reason="the oracle is in the extra `peers`")
    with pytest.raises(ParameterError, match="settings of Transformers must be a mapping"):
        SamplingParams.from_transformers(transformers.GenerationConfig)


@pytest.mark.parametrize(
    ("translate", "given", "said"),
    [
        (from_transformers, {"eos_token_id": 2.5}, r"eos_token_id=2\.5"),
        (from_transformers, {"num_beams": np.array([1, 2])}, r"num_beams=array"),
        (from_transformers, {"num_beams": 3, "early_stopping": "soon"}, "early_stopping must be"),
        (from_transformers, {"dola_layers": "middle"}, "layers must be"),
        (from_transformers, {"sequence_bias": [[[[10]], -2.0]]}, "sequence_bias="),
        (from_transformers, {"bad_words_ids": ["x"]}, "a list of lists of token ids"),
        (from_llama_cpp, {"samplers": 5}, "samplers=5"),
        (
            from_llama_cpp,
            {"samplers": {"top_k", "dry"}},
            "samplers=.*must be a list of names, or names or letters in a",
        ),
        (from_llama_cpp, {"logit_bias": {"9" * 5000: 1}}, "logit_bias="),
        (from_vllm, {"stop": False}, "stop=False"),
        (from_vllm, {"stop_token_ids": 0}, "stop_token_ids=0"),
        (from_vllm, {"bad_words": 0}, "bad_words=0"),
        (from_vllm, {"logit_bias": 0}, "logit_bias=0"),
        (from_openai, {"stop": 0}, "stop=0"),
        (from_openai, {"logit_bias": False}, "logit_bias=False"),
        (from_llama_cpp, {"stop": 0}, "stop=0"),
        (from_llama_cpp, {"samplers": b""}, "samplers=b''"),
        (from_vllm, {"best_of": True, "detokenize": 1}, "best_of=True, detokenize=1"),
        (from_transformers, {"num_beams": np.array([1])}, "num_beams=array"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_beside_the_others(
    translate: Translation, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ParameterError, match=rf"{said}(.|\n)*, zzz \(unknown\)"):
        translate({**given, "zzz": 1})


def test_numbers_of_every_kind_are_taken_as_sampling_params_takes_them() -> None:
    for translate in MODULES:
        given = {"do_sample": True} if translate is from_transformers else {}
        expected = METHODS[translate]({**given, "temperature": 0.5})
        assert METHODS[translate]({**given, "temperature": np.float32(0.5)}) == expected
        assert METHODS[translate]({**given, "temperature": np.array(0.5)}) == expected
    assert SamplingParams.from_vllm({"top_k": np.int64(-1)}).top_k == 0
    assert SamplingParams.from_llama_cpp({"top_k": np.int32(-1), "repeat_last_n": np.int64(-1)}).top_k == 0
    assert SamplingParams.from_vllm({"seed": np.int64(-1)}).seed is None
    for ends in (np.int64(2), [2], (np.int32(2),), np.array([2])):
        assert SamplingParams.from_transformers({"eos_token_id": ends}).stop_token_ids == (2,)
    biased = SamplingParams.from_llama_cpp({"logit_bias": [[np.int64(3), np.float32(0.5)]]})
    assert biased.logit_bias == ((3, 0.5),)


def test_llama_cpp_passes_over_empty_stop_strings() -> None:
    assert from_llama_cpp({"stop": ["", "END", ""]})["stop"] == ("END",)
    assert from_llama_cpp({"stop": ""}) == from_llama_cpp({"stop": []}) == from_llama_cpp({})
