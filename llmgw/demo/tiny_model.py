"""Writes a Llama of random weights as a GGUF file: a model for a demo and for tests, made on the spot in a second.

It computes like any other model and knows nothing: its answers are plain words in no order. The file depends on
the numbers it is given and on nothing else. Any text can be encoded, since the tokenizer holds all 256 bytes.

How long an answer gets is decided by `max_tokens` alone, because no token that would end it is ever drawn. That is
built in as follows: the first channel of the residual stream holds the same positive number for every token, no layer
writes to it, and the output head takes it times `-FORBIDDEN` for every token that must not be said. What the other
channels add is smaller by far, at any temperature that a client may ask for.

`--layers` makes it slow without making it large: a layer of this width costs its overhead, not its arithmetic.
"""

import argparse
from pathlib import Path

import attrs
import gguf
import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float32]

HEAD_DIM = 32
"""The narrowest that the common attention kernels take."""
LAYERS_MAX = 512
"""llama.cpp refuses more."""

CONSTANT = 4.0
"""The first channel of the residual stream; the others are about 1."""
FORBIDDEN = 30.0
"""Times the constant, normalised: at least 50 below a logit that is drawn."""
SPREAD = 2.5
"""Standard deviation of the logits: more makes the answers repeat themselves, less makes them even noise."""

WORDS = (
    "we you they it this that one two some many all every little big old new good quiet bright slow quick warm cold "
    "river mountain garden window morning evening winter summer letter story music bread water light stone paper "
    "walks sings opens finds carries remembers follows answers waits writes keeps turns grows sleeps listens "
    "and or but so when where because while until near under over behind between with without for from to"
)
PUNCTUATION = (".", ",", "!", "?", ";")

START, TURN, TURN_END = "<|begin|>", "<|im_start|>", "<|im_end|>"
CONTROL = (START, TURN, TURN_END)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)


@attrs.frozen
class Shape:
    """The size of a model."""

    layers: int = 2
    hidden: int = 64
    """A multiple of 32."""
    context: int = 4096
    """Tokens that it accepts."""
    seed: int = 0

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.layers <= LAYERS_MAX:
            raise ValueError(f"layers: expected 1 to {LAYERS_MAX}, got {self.layers}")
        if self.hidden < HEAD_DIM or self.hidden % HEAD_DIM:
            raise ValueError(f"hidden: expected a multiple of {HEAD_DIM}, got {self.hidden}")
        if self.context < 1:
            raise ValueError(f"context: expected at least 1, got {self.context}")

    @property
    def feed_forward(self) -> int:
        return 2 * self.hidden


@attrs.frozen
class Vocabulary:
    """Token texts by id in the byte-level alphabet, the merges that build them, and the ids that are ever drawn."""

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    spoken: tuple[int, ...]

    @classmethod
    def build(cls) -> "Vocabulary":
        """All bytes, then every beginning of ` word`, so that a word is reached merge by merge, then control tokens."""
        alphabet, words = byte_alphabet(), WORDS.split()
        tokens = {character: number for number, character in enumerate(alphabet)}
        merges = []
        for word in words:
            beginning = alphabet[ord(" ")]
            for character in word:
                longer = beginning + character
                if longer not in tokens:
                    tokens[longer] = len(tokens)
                    merges.append(f"{beginning} {character}")
                beginning = longer
        spoken = [tokens[alphabet[ord(" ")] + word] for word in words] + [tokens[mark] for mark in PUNCTUATION]
        return cls((*tokens, *CONTROL), tuple(merges), tuple(spoken))


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in byte-level BPE: itself, or one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    alphabet, next_stand_in = [], 0x100
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(next_stand_in))
            next_stand_in += 1
    return alphabet


def make_weights(shape: Shape, vocabulary: Vocabulary) -> dict[str, Weights]:
    """Every tensor by its GGUF name, in the order of the file."""
    rng = np.random.default_rng(shape.seed)
    hidden, feed_forward = shape.hidden, shape.feed_forward

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Weights:
        """Keeps the size of what goes through it, times `scale`."""
        return (rng.standard_normal((rows, columns), np.float32) * np.float32(scale / np.sqrt(columns))).astype(
            np.float32
        )

    ones = np.ones(hidden, np.float32)
    embedding = rng.standard_normal((len(vocabulary.tokens), hidden), np.float32)
    embedding[:, 0] = CONSTANT
    head = matrix(len(vocabulary.tokens), hidden, SPREAD)
    head[:, 0] = -FORBIDDEN
    head[list(vocabulary.spoken), 0] = 0.0
    weights = {"token_embd.weight": embedding, "output_norm.weight": ones, "output.weight": head}
    # All layers together add about as much to the stream as the embedding put there, however many they are.
    share = 1 / np.sqrt(2 * shape.layers)
    for layer in range(shape.layers):
        parts = {
            "attn_norm": ones,
            "attn_q": matrix(hidden, hidden),
            "attn_k": matrix(HEAD_DIM, hidden),
            "attn_v": matrix(HEAD_DIM, hidden),
            "attn_output": matrix(hidden, hidden, share),
            "ffn_norm": ones,
            "ffn_gate": matrix(feed_forward, hidden),
            "ffn_up": matrix(feed_forward, hidden),
            "ffn_down": matrix(hidden, feed_forward, share),
        }
        parts["attn_output"][0] = 0.0
        parts["ffn_down"][0] = 0.0
        weights |= {f"blk.{layer}.{part}.weight": tensor for part, tensor in parts.items()}
    return weights


def write_tiny_model(path: Path, shape: Shape) -> None:
    """Write the model to `path`, which is whole or not there: it appears under its name when it is finished."""
    vocabulary = Vocabulary.build()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _describe(writer, shape, vocabulary)
    for name, tensor in make_weights(shape, vocabulary).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(path)


def _describe(writer: gguf.GGUFWriter, shape: Shape, vocabulary: Vocabulary) -> None:
    writer.add_name("tiny random words")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.hidden // HEAD_DIM)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary.tokens))
    kinds = [gguf.TokenType.CONTROL if token in CONTROL else gguf.TokenType.NORMAL for token in vocabulary.tokens]
    writer.add_token_types(kinds)
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_add_bos_token(False)
    writer.add_bos_token_id(vocabulary.tokens.index(START))
    writer.add_eos_token_id(vocabulary.tokens.index(TURN_END))
    writer.add_pad_token_id(vocabulary.tokens.index(START))
    writer.add_chat_template(CHAT_TEMPLATE)


def main(arguments: list[str] | None = None) -> None:
    """`python -m llmgw.demo.tiny_model PATH [--layers N] ...`."""
    parser = argparse.ArgumentParser(prog="tiny_model", description="Write a tiny model of random weights as GGUF.")
    parser.add_argument("path", type=Path, help="file to write")
    for field in attrs.fields(Shape):
        parser.add_argument(f"--{field.name}", type=int, default=field.default, help="default: %(default)s")
    given = vars(parser.parse_args(arguments))
    path = given.pop("path")
    try:
        shape = Shape(**given)
    except ValueError as error:
        parser.error(str(error))
    write_tiny_model(path, shape)


if __name__ == "__main__":
    main()
