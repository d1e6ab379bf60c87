from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.demo.tiny_model import (
    CONTROL,
    HEAD_DIM,
    LAYERS_MAX,
    PUNCTUATION,
    WORDS,
    Shape,
    Vocabulary,
    Weights,
    byte_alphabet,
    main,
    make_weights,
    write_tiny_model,
)

ALPHABET = byte_alphabet()
BYTES = {character: byte for byte, character in enumerate(ALPHABET)}
TOKENS = Vocabulary.build().tokens
IDS = {token: number for number, token in enumerate(TOKENS)}

SMALL = Shape(layers=1, hidden=32, context=64)


def normalised(stream: Weights) -> Weights:
    return stream / np.float32(np.sqrt((stream**2).mean()))


def test_the_file_depends_on_its_numbers_alone(tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    write_tiny_model(first, SMALL)
    write_tiny_model(second, SMALL)
    write_tiny_model(other, Shape(layers=1, hidden=32, context=64, seed=1))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "b.gguf", "c.gguf"]


def test_what_is_written_can_be_read_back(tmp_path: Path) -> None:
    main([str(tmp_path / "new" / "m.gguf"), "--layers", "3", "--hidden", "96", "--context", "128"])
    reader = gguf.GGUFReader(tmp_path / "new" / "m.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert fields["llama.block_count"] == 3
    assert fields["llama.embedding_length"] == 96
    assert fields["llama.attention.head_count"] == 96 // HEAD_DIM
    assert fields["llama.context_length"] == 128
    tokens = fields["tokenizer.ggml.tokens"]
    assert tokens[fields["tokenizer.ggml.eos_token_id"]] == "<|im_end|>"
    assert "add_generation_prompt" in fields["tokenizer.chat_template"]
    assert len(reader.tensors) == 3 + 3 * 9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--layers", "0"], "layers: expected 1 to 512, got 0"),
        (["--layers", str(LAYERS_MAX + 1)], "layers: expected 1 to 512, got 513"),
        (["--hidden", "48"], "hidden: expected a multiple of 32, got 48"),
        (["--hidden", "0"], "hidden: expected a multiple of 32, got 0"),
        (["--context", "0"], "context: expected at least 1, got 0"),
    ],
)
def test_a_size_that_no_engine_takes_is_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "m.gguf"), *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_alphabet_has_a_printable_character_for_each_byte() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet)) == 256
    assert all(character.isprintable() and not character.isspace() for character in alphabet)
    assert alphabet[ord("a")] == "a"
    # The stand-in that every byte-level tokenizer uses for a blank.
    assert alphabet[ord(" ")] == "Ġ"


def test_every_byte_is_a_token_and_every_merge_builds_one() -> None:
    vocabulary = Vocabulary.build()
    assert vocabulary.tokens[:256] == tuple(byte_alphabet())
    assert len(set(vocabulary.tokens)) == len(vocabulary.tokens)
    for merge in vocabulary.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= set(vocabulary.tokens)


@settings(max_examples=100)  # what can differ is 256 bytes
@given(st.text(max_size=40))
def test_any_text_can_be_encoded_and_comes_back(text: str) -> None:
    ids = [IDS[ALPHABET[byte]] for byte in text.encode()]
    assert bytes(BYTES[TOKENS[number]] for number in ids).decode() == text


def test_words_and_punctuation_are_what_is_spoken() -> None:
    vocabulary = Vocabulary.build()
    spoken = {vocabulary.tokens[number].replace("Ġ", "") for number in vocabulary.spoken}
    assert spoken == {*WORDS.split(), *PUNCTUATION}
    assert not spoken & set(CONTROL)


@pytest.mark.parametrize("shape", [Shape(), Shape(layers=7, hidden=32), Shape(layers=2, hidden=256, seed=3)])
def test_nothing_that_must_not_be_said_comes_near_what_may_be(shape: Shape) -> None:
    """Property: whatever the layers add, a forbidden token is 25 below the best spoken one: never in 10^10 draws,
    also at temperature 1.5."""
    vocabulary = Vocabulary.build()
    weights = make_weights(shape, vocabulary)
    head, embedding = weights["output.weight"], weights["token_embd.weight"]
    spoken = list(vocabulary.spoken)
    forbidden = [number for number in range(len(vocabulary.tokens)) if number not in vocabulary.spoken]
    rng = np.random.default_rng(7)
    for _ in range(500):
        # The stream after the layers: a token's embedding and as much again in every channel but the first.
        stream = embedding[rng.integers(len(embedding))] + 1.5 * rng.standard_normal(shape.hidden).astype(np.float32)
        stream[0] = embedding[0, 0]
        logits = head @ normalised(stream)
        assert logits[forbidden].max() < logits[spoken].max() - 25


def test_no_layer_touches_the_first_channel() -> None:
    shape = Shape(layers=3)
    weights = make_weights(shape, Vocabulary.build())
    for layer in range(shape.layers):
        assert not weights[f"blk.{layer}.attn_output.weight"][0].any()
        assert not weights[f"blk.{layer}.ffn_down.weight"][0].any()
    assert len(set(weights["token_embd.weight"][:, 0])) == 1
