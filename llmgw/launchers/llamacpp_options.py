"""The flags of `llama-server` that the llama.cpp server in xllamacpp can honour, with the same spellings and defaults.

A flag sets one attribute of `xllamacpp.CommonParams`, named by its path (`cpuparams.n_threads`). Anything else is an
error, as it is in llama-server: a flag that is accepted and does nothing would be found out weeks later. So is an
environment variable of llama-server (`LLAMA_ARG_...`) that no flag here answers to.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

Settings = dict[str, Any]
"""Values by attribute path. An `EnumMember` stands for a member of one of xllamacpp's enums."""

PORT_DEFAULT = 8080
_SWITCHED_ON = ("1", "true", "on", "enabled")
_SWITCHED_OFF = ("0", "false", "off", "disabled")


class UsageError(Exception):
    """The command line cannot be obeyed. `str()` is one line in llama-server's words."""


@attrs.frozen
class EnumMember:
    """A member of an enum of xllamacpp, by name, so that parsing needs no engine."""

    enum: str
    member: str


@attrs.frozen
class Option:
    """One setting: its spellings, the variable that stands in for them, and the attribute it sets."""

    path: str
    names: tuple[str, ...]
    """The spellings; of a switch those that turn it on."""
    convert: Callable[[str], Any] | None = None
    """From text; raises ValueError saying what was expected. None: a switch, which takes no value."""
    env: str = ""
    off: tuple[str, ...] = ()
    """Spellings that turn a switch off."""


def parse_options(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """What the command line and llama-server's environment variables ask for; the command line wins. UsageError."""
    settings: Settings = {"port": PORT_DEFAULT, "n_parallel": -1}
    _read_environment(environ, settings)
    words = iter(arguments)
    for word in words:
        # llama-server reads --ctx_size as --ctx-size.
        name = word.replace("_", "-") if word.startswith("--") else word
        option = _BY_NAME.get(name)
        if option is None:
            raise UsageError(f"invalid argument: {word}")
        if option.convert is None:
            _set(settings, option, name in option.names)
            continue
        value = next(words, None)
        if value is None:
            raise UsageError(f'error while handling argument "{word}": expected value for argument')
        _set(settings, option, _converted(option, value, f'argument "{word}"'))
    if "model.path" not in settings:
        raise UsageError("a model is needed: --model FNAME")
    if "cpuparams.n_threads" in settings:
        settings.setdefault("cpuparams_batch.n_threads", settings["cpuparams.n_threads"])
    return settings


def apply_settings(settings: Settings, params: Any, enums: Any) -> None:
    """Set every attribute of `params` (xllamacpp.CommonParams); `enums` is the module that holds the enums."""
    for path, value in settings.items():
        *owners, attribute = path.split(".")
        target = params
        for owner in owners:
            target = getattr(target, owner)
        native = getattr(getattr(enums, value.enum), value.member) if isinstance(value, EnumMember) else value
        setattr(target, attribute, native)


def _read_environment(environ: Mapping[str, str], settings: Settings) -> None:
    for name, text in environ.items():
        option = _BY_VARIABLE.get(name)
        if option is None:
            if name.startswith("LLAMA_ARG_"):
                raise UsageError(f"invalid environment variable: {name}")
            continue
        _set(settings, option, _converted(option, text, f"environment variable {name}"))


def _converted(option: Option, text: str, where: str) -> Any:
    try:
        if option.convert is not None:
            return option.convert(text)
        return _switch(text)
    except (ValueError, OSError) as error:
        raise UsageError(f"error while handling {where}: {error}") from error


def _set(settings: Settings, option: Option, value: Any) -> None:
    settings[option.path] = value
    if option.path == RERANK:
        # As llama-server does: ranking is an embedding with a pooling of its own.
        del settings[RERANK]
        settings |= {"embedding": True, "pooling_type": EnumMember("llama_pooling_type", "LLAMA_POOLING_TYPE_RANK")}


# --- from text ------------------------------------------------------------------------------------------------


def _switch(text: str) -> bool:
    if text in _SWITCHED_ON:
        return True
    if text in _SWITCHED_OFF:
        return False
    raise ValueError(f"expected on or off, got {text!r}")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected a whole number, got {text!r}") from None


def _seed(text: str) -> int:
    return _integer(text) & 0xFFFFFFFF


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, got {text!r}") from None


def _port(text: str) -> int:
    port = _integer(text)
    if not 0 <= port <= 65535:  # noqa: PLR2004
        raise ValueError(f"expected a port, got {text!r}")
    return port


def _layers(text: str) -> int:
    return {"auto": -1, "all": -2}.get(text) or _integer(text)


def _names(text: str) -> set[str]:
    return {name.strip() for name in text.split(",") if name.strip()}


def _comma_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _keys_of_file(text: str) -> list[str]:
    lines = Path(text).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _file_text(text: str) -> str:
    return Path(text).read_text()


def _template_arguments(text: str) -> dict[str, str]:
    """llama.cpp keeps each value as JSON text."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {text!r}")  # noqa: TRY004
    return {key: json.dumps(item) for key, item in value.items()}


def _one_of(enum: str, members: Mapping[str, str]) -> Callable[[str], EnumMember]:
    def convert(text: str) -> EnumMember:
        if text not in members:
            raise ValueError(f"expected one of {', '.join(members)}, got {text!r}")
        return EnumMember(enum, members[text])

    return convert


def _spelled(prefix: str, *names: str) -> dict[str, str]:
    return {name: prefix + name.upper().replace("-", "_") for name in names}


_POOLING = _one_of("llama_pooling_type", _spelled("LLAMA_POOLING_TYPE_", "none", "mean", "cls", "last", "rank"))
_FLASH = _one_of(
    "llama_flash_attn_type",
    {
        word: f"LLAMA_FLASH_ATTN_TYPE_{member}"
        for member, words in (("ENABLED", _SWITCHED_ON), ("DISABLED", _SWITCHED_OFF), ("AUTO", ("auto", "-1")))
        for word in words
    },
)
_CACHE_TYPE = _one_of(
    "ggml_type",
    _spelled("GGML_TYPE_", "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"),
)
_SPLIT = _one_of("llama_split_mode", _spelled("LLAMA_SPLIT_MODE_", "none", "layer", "row", "tensor"))
_NUMA = _one_of("ggml_numa_strategy", _spelled("GGML_NUMA_STRATEGY_", "distribute", "isolate", "numactl"))
_LOAD = _one_of(
    "llama_load_mode",
    _spelled("LLAMA_LOAD_MODE_", "auto", "none", "mmap", "mlock")
    | {"mmap+mlock": "LLAMA_LOAD_MODE_MMAP_MLOCK", "dio": "LLAMA_LOAD_MODE_DIRECT_IO"},
)
_REASONING = _one_of(
    "common_reasoning_format",
    _spelled("COMMON_REASONING_FORMAT_", "none", "auto", "deepseek", "deepseek-legacy"),
)
_ROPE = _one_of("llama_rope_scaling_type", _spelled("LLAMA_ROPE_SCALING_TYPE_", "none", "linear", "yarn"))

RERANK = "rerank"

OPTIONS = (
    # What is served, and where.
    Option("model.path", ("-m", "--model"), str, "LLAMA_ARG_MODEL"),
    Option("model_alias", ("-a", "--alias"), _names, "LLAMA_ARG_ALIAS"),
    Option("model_tags", ("--tags",), _names, "LLAMA_ARG_TAGS"),
    Option("hostnames", ("--host",), _comma_list, "LLAMA_ARG_HOST"),
    Option("port", ("--port",), _port, "LLAMA_ARG_PORT"),
    Option("api_keys", ("--api-key",), _comma_list, "LLAMA_API_KEY"),
    Option("api_keys", ("--api-key-file",), _keys_of_file, "LLAMA_ARG_API_KEY_FILE"),
    Option("n_threads_http", ("--threads-http",), _integer, "LLAMA_ARG_THREADS_HTTP"),
    Option("sse_ping_interval", ("--sse-ping-interval",), _integer, "LLAMA_ARG_SSE_PING_INTERVAL"),
    Option("endpoint_metrics", ("--metrics",), env="LLAMA_ARG_ENDPOINT_METRICS"),
    Option("endpoint_props", ("--props",), env="LLAMA_ARG_ENDPOINT_PROPS"),
    Option("endpoint_slots", ("--slots",), env="LLAMA_ARG_ENDPOINT_SLOTS", off=("--no-slots",)),
    Option("slot_save_path", ("--slot-save-path",), str),
    Option("ui", ("--ui", "--webui"), env="LLAMA_ARG_UI", off=("--no-ui", "--no-webui")),
    # Embeddings and ranking.
    Option("embedding", ("--embedding", "--embeddings"), env="LLAMA_ARG_EMBEDDINGS"),
    Option(RERANK, ("--rerank", "--reranking"), env="LLAMA_ARG_RERANKING"),
    Option("pooling_type", ("--pooling",), _POOLING, "LLAMA_ARG_POOLING"),
    Option("embd_normalize", ("--embd-normalize",), _integer),
    # Context, batches, slots.
    Option("n_ctx", ("-c", "--ctx-size"), _integer, "LLAMA_ARG_CTX_SIZE"),
    Option("n_parallel", ("-np", "--parallel"), _integer, "LLAMA_ARG_N_PARALLEL"),
    Option("n_batch", ("-b", "--batch-size"), _integer, "LLAMA_ARG_BATCH"),
    Option("n_ubatch", ("-ub", "--ubatch-size"), _integer, "LLAMA_ARG_UBATCH"),
    Option("n_predict", ("-n", "--predict", "--n-predict"), _integer, "LLAMA_ARG_N_PREDICT"),
    Option("n_keep", ("--keep",), _integer),
    Option(
        "cont_batching",
        ("-cb", "--cont-batching"),
        env="LLAMA_ARG_CONT_BATCHING",
        off=("-nocb", "--no-cont-batching"),
    ),
    Option("kv_unified", ("-kvu", "--kv-unified"), env="LLAMA_ARG_KV_UNIFIED", off=("-no-kvu", "--no-kv-unified")),
    Option("ctx_shift", ("--context-shift",), env="LLAMA_ARG_CONTEXT_SHIFT", off=("--no-context-shift",)),
    Option("cache_prompt", ("--cache-prompt",), env="LLAMA_ARG_CACHE_PROMPT", off=("--no-cache-prompt",)),
    Option("n_cache_reuse", ("--cache-reuse",), _integer, "LLAMA_ARG_CACHE_REUSE"),
    Option("cache_ram_mib", ("-cram", "--cache-ram"), _integer, "LLAMA_ARG_CACHE_RAM"),
    Option("slot_prompt_similarity", ("-sps", "--slot-prompt-similarity"), _number),
    Option("swa_full", ("--swa-full",), env="LLAMA_ARG_SWA_FULL"),
    Option("cache_type_k", ("-ctk", "--cache-type-k"), _CACHE_TYPE, "LLAMA_ARG_CACHE_TYPE_K"),
    Option("cache_type_v", ("-ctv", "--cache-type-v"), _CACHE_TYPE, "LLAMA_ARG_CACHE_TYPE_V"),
    Option("flash_attn_type", ("-fa", "--flash-attn"), _FLASH, "LLAMA_ARG_FLASH_ATTN"),
    Option("sleep_idle_seconds", ("--sleep-idle-seconds",), _integer),
    # Processor and cards.
    Option("cpuparams.n_threads", ("-t", "--threads"), _integer, "LLAMA_ARG_THREADS"),
    Option("cpuparams_batch.n_threads", ("-tb", "--threads-batch"), _integer),
    Option("numa", ("--numa",), _NUMA, "LLAMA_ARG_NUMA"),
    Option("load_mode", ("-lm", "--load-mode"), _LOAD, "LLAMA_ARG_LOAD_MODE"),
    Option("n_gpu_layers", ("-ngl", "--gpu-layers", "--n-gpu-layers"), _layers, "LLAMA_ARG_N_GPU_LAYERS"),
    Option("split_mode", ("-sm", "--split-mode"), _SPLIT, "LLAMA_ARG_SPLIT_MODE"),
    Option("main_gpu", ("-mg", "--main-gpu"), _integer, "LLAMA_ARG_MAIN_GPU"),
    Option(
        "no_kv_offload",
        ("-nkvo", "--no-kv-offload"),
        off=("-kvo", "--kv-offload"),
    ),
    Option("check_tensors", ("--check-tensors",)),
    Option("warmup", ("--warmup",), off=("--no-warmup",)),
    Option("mmproj.path", ("-mm", "--mmproj"), str, "LLAMA_ARG_MMPROJ"),
    # The scaling of positions.
    Option("rope_scaling_type", ("--rope-scaling",), _ROPE, "LLAMA_ARG_ROPE_SCALING_TYPE"),
    Option("rope_freq_base", ("--rope-freq-base",), _number, "LLAMA_ARG_ROPE_FREQ_BASE"),
    Option("rope_freq_scale", ("--rope-freq-scale",), _number, "LLAMA_ARG_ROPE_FREQ_SCALE"),
    Option("yarn_orig_ctx", ("--yarn-orig-ctx",), _integer, "LLAMA_ARG_YARN_ORIG_CTX"),
    Option("yarn_ext_factor", ("--yarn-ext-factor",), _number, "LLAMA_ARG_YARN_EXT_FACTOR"),
    Option("yarn_attn_factor", ("--yarn-attn-factor",), _number, "LLAMA_ARG_YARN_ATTN_FACTOR"),
    Option("yarn_beta_slow", ("--yarn-beta-slow",), _number, "LLAMA_ARG_YARN_BETA_SLOW"),
    Option("yarn_beta_fast", ("--yarn-beta-fast",), _number, "LLAMA_ARG_YARN_BETA_FAST"),
    # Chats.
    Option("use_jinja", ("--jinja",), env="LLAMA_ARG_JINJA", off=("--no-jinja",)),
    Option("chat_template", ("--chat-template",), str, "LLAMA_ARG_CHAT_TEMPLATE"),
    Option("chat_template", ("--chat-template-file",), _file_text, "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    Option(
        "default_template_kwargs", ("--chat-template-kwargs",), _template_arguments, "LLAMA_ARG_CHAT_TEMPLATE_KWARGS"
    ),
    Option("reasoning_format", ("--reasoning-format",), _REASONING, "LLAMA_ARG_THINK"),
    Option(
        "prefill_assistant",
        ("--prefill-assistant",),
        env="LLAMA_ARG_PREFILL_ASSISTANT",
        off=("--no-prefill-assistant",),
    ),
    # Sampling, where a request does not say.
    Option("sampling.seed", ("-s", "--seed"), _seed),
    Option("sampling.temp", ("--temp", "--temperature"), _number, "LLAMA_ARG_TEMPERATURE"),
    Option("sampling.top_k", ("--top-k",), _integer, "LLAMA_ARG_TOP_K"),
    Option("sampling.top_p", ("--top-p",), _number, "LLAMA_ARG_TOP_P"),
    Option("sampling.min_p", ("--min-p",), _number, "LLAMA_ARG_MIN_P"),
    Option("sampling.penalty_last_n", ("--repeat-last-n",), _integer),
    Option("sampling.penalty_repeat", ("--repeat-penalty",), _number, "LLAMA_ARG_REPEAT_PENALTY"),
    Option("sampling.penalty_present", ("--presence-penalty",), _number, "LLAMA_ARG_PRESENCE_PENALTY"),
    Option("sampling.penalty_freq", ("--frequency-penalty",), _number, "LLAMA_ARG_FREQUENCY_PENALTY"),
    # What is said.
    Option("verbosity", ("-lv", "--verbosity", "--log-verbosity"), _integer, "LLAMA_ARG_LOG_VERBOSITY"),
)

_BY_NAME = {name: option for option in OPTIONS for name in (*option.names, *option.off)}
_BY_VARIABLE = {option.env: option for option in OPTIONS if option.env}
