from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmgw.launchers.llamacpp_options import OPTIONS, EnumMember, Option, UsageError, apply_settings, parse_options

HELP = Path(__file__).parent / "llama-server-flags.txt"
"""Every flag of llama-server, one spelling a word, as its --help lists them."""


def parse(*arguments: str, **environ: str) -> dict[str, Any]:
    return parse_options(("--model", "m.gguf", *arguments), environ)


def test_a_command_line_as_the_adapter_writes_it() -> None:
    line = "--alias tiny --host 127.0.0.1 --port 20000 --metrics --embeddings --pooling mean -c 4096"
    assert parse(*line.split()) == {
        "port": 20000,
        "n_parallel": -1,
        "model.path": "m.gguf",
        "model_alias": {"tiny"},
        "hostnames": ["127.0.0.1"],
        "endpoint_metrics": True,
        "embedding": True,
        "pooling_type": EnumMember("llama_pooling_type", "LLAMA_POOLING_TYPE_MEAN"),
        "n_ctx": 4096,
    }


def test_the_defaults_are_llama_server_s() -> None:
    assert parse() == {"model.path": "m.gguf", "port": 8080, "n_parallel": -1}


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        (("--ctx_size", "512"), "n_ctx", 512),
        (("-ngl", "auto"), "n_gpu_layers", -1),
        (("-ngl", "all"), "n_gpu_layers", -2),
        (("-ngl", "0"), "n_gpu_layers", 0),
        (("-fa", "on"), "flash_attn_type", EnumMember("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_ENABLED")),
        (("-ctk", "q8_0"), "cache_type_k", EnumMember("ggml_type", "GGML_TYPE_Q8_0")),
        (("--no-slots",), "endpoint_slots", False),
        (("--slots", "--no-slots", "--slots"), "endpoint_slots", True),
        (("-nkvo",), "no_kv_offload", True),
        (("-kvo",), "no_kv_offload", False),
        (("--no-warmup",), "warmup", False),
        (("--seed", "-1"), "sampling.seed", 0xFFFFFFFF),
        (("--temp", "0.5"), "sampling.temp", 0.5),
        (("--api-key", "a,b"), "api_keys", ["a", "b"]),
        (("--chat-template-kwargs", '{"a": {"b": 1}}'), "default_template_kwargs", {"a": '{"b": 1}'}),
        (("--chat-template", ""), "chat_template", ""),
        (("--port", "1", "--port", "2"), "port", 2),
        (("-t", "1"), "cpuparams_batch.n_threads", 1),
        (("-t", "1", "-tb", "2"), "cpuparams_batch.n_threads", 2),
        (("--rerank",), "embedding", True),
        (("--rerank",), "pooling_type", EnumMember("llama_pooling_type", "LLAMA_POOLING_TYPE_RANK")),
    ],
)
def test_a_flag_sets_its_attribute(arguments: tuple[str, ...], path: str, value: Any) -> None:
    assert parse(*arguments)[path] == value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--frob",), "invalid argument: --frob"),
        (("--ctx-size=512",), "invalid argument: --ctx-size=512"),
        (("",), "invalid argument: "),
        (("stray",), "invalid argument: stray"),
        (("-C", "8"), "invalid argument: -C"),
        (("--ctx-size",), 'error while handling argument "--ctx-size": expected value for argument'),
        (("-c", "many"), "error while handling argument \"-c\": expected a whole number, got 'many'"),
        (("--temp", "hot"), "error while handling argument \"--temp\": expected a number, got 'hot'"),
        (("--port", "65536"), "error while handling argument \"--port\": expected a port, got '65536'"),
        (
            ("--pooling", "max"),
            "error while handling argument \"--pooling\": expected one of none, mean, cls, last, rank, got 'max'",
        ),
        (
            ("--chat-template-kwargs", "[]"),
            "error while handling argument \"--chat-template-kwargs\": expected a JSON object, got '[]'",
        ),
    ],
)
def test_what_is_not_understood_is_refused_in_llama_server_s_words(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(*arguments)
    assert str(refusal.value) == words


def test_a_model_is_needed() -> None:
    with pytest.raises(UsageError, match=r"^a model is needed: --model FNAME$"):
        parse_options((), {})


def test_variables_stand_in_for_flags_and_the_command_line_wins() -> None:
    environ = {"LLAMA_ARG_CTX_SIZE": "256", "LLAMA_API_KEY": "k", "LLAMA_ARG_UI": "off", "LLAMA_ARG_MODEL": "other"}
    settings = parse("-c", "512", **environ, PATH="/bin")
    assert settings["n_ctx"] == 512
    assert settings["api_keys"] == ["k"]
    assert settings["ui"] is False
    assert settings["model.path"] == "m.gguf"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"LLAMA_ARG_FROB": "1"}, "invalid environment variable: LLAMA_ARG_FROB"),
        ({"LLAMA_ARG_CTX_SIZE": "x"}, "environment variable LLAMA_ARG_CTX_SIZE: expected a whole number"),
        ({"LLAMA_ARG_ENDPOINT_METRICS": "yes"}, "LLAMA_ARG_ENDPOINT_METRICS: expected on or off, got 'yes'"),
    ],
)
def test_a_variable_that_cannot_be_obeyed_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(**environ)
    assert words in str(refusal.value)


def test_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# ours\none\n\ntwo\n")
    (tmp_path / "template").write_text("{{ x }}\n")
    settings = parse("--api-key-file", str(tmp_path / "keys"), "--chat-template-file", str(tmp_path / "template"))
    assert settings["api_keys"] == ["one", "two"]
    assert settings["chat_template"] == "{{ x }}\n"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--api-key-file.*No such file"):
        parse("--api-key-file", str(tmp_path / "absent"))


def test_no_spelling_means_two_things() -> None:
    spellings = [name for option in OPTIONS for name in (*option.names, *option.off)]
    variables = [option.env for option in OPTIONS if option.env]
    assert len(spellings) == len(set(spellings))
    assert len(variables) == len(set(variables))


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.names[-1])
def test_every_spelling_is_one_of_llama_server_s(option: Option) -> None:
    assert {*option.names, *option.off} <= set(HELP.read_text().split())


def test_settings_are_applied_by_path() -> None:
    params = SimpleNamespace(port=0, cpuparams=SimpleNamespace(n_threads=-1), pooling_type=None)
    enums = SimpleNamespace(pooling=SimpleNamespace(MEAN=7))
    apply_settings({"port": 5, "cpuparams.n_threads": 2, "pooling_type": EnumMember("pooling", "MEAN")}, params, enums)
    assert params == SimpleNamespace(port=5, cpuparams=SimpleNamespace(n_threads=2), pooling_type=7)


VALUES = ("1", "auto", "mean", "f16", "layer", "numactl", "none", '{"a": 1}', "linear")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.names[-1])
def test_the_installed_library_has_every_attribute_and_takes_it(option: Option, tmp_path: Path) -> None:
    xllamacpp = pytest.importorskip("xllamacpp", reason="the extra llamacpp is not installed")
    (tmp_path / "1").write_text("text")
    values = (*VALUES, str(tmp_path / "1"))
    value = next((value for value in values if option.convert is not None and converts(option, value)), None)
    settings = parse_options(("-m", "m", option.names[0], *(() if value is None else (value,))), {})
    params = xllamacpp.CommonParams()
    apply_settings(settings, params, xllamacpp)
    for path, set_to in settings.items():
        target: Any = params
        for name in path.split("."):
            target = getattr(target, name)
        if isinstance(set_to, EnumMember):
            assert target.name == set_to.member
        else:
            assert target == pytest.approx(set_to) if isinstance(set_to, float) else target == set_to


def converts(option: Option, value: str) -> bool:
    assert option.convert is not None
    try:
        option.convert(value)
    except (ValueError, OSError):
        return False
    return True
