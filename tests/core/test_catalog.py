import hashlib

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.core.catalog import Placement, Profile, Secret, StaticEndpoint, Strategy, canonical, spec_hash
from llmgw.core.units import Duration, Size

PINNED = [
    (Profile("llamacpp"), "5b1d521f20890180"),
    (Profile("llamacpp", "tiny.gguf"), "45ccf0219f6b24cb"),
    (Profile("llamacpp", "tiny.gguf", args=("--embeddings", "--pooling", "mean")), "455878f9a6f7e5fb"),
    (Profile("vllm", "meta/Llama", gpus=8, nodes=2), "8f38ea0f3bfe1f3a"),
    (Profile("vllm", "m", gpus=1, gpu_memory=Size(40 * 1024**3)), "8ac9139182b6c336"),
    (Profile("vllm", "m", env={"HF_TOKEN": Secret("/etc/llmgw/hf"), "A": "b"}), "6e1a22cd3b041fe2"),
    (
        Profile("command", args=("sh", "-c", "exit 0"), probe="url:/up", listener_check=False),
        "478f7aa616971c4c",
    ),
    (Profile("sglang", "m", memory=Size(2 * 1024**3), port=30000), "7a904126bf079ad7"),
    (Profile("vllm", "m", start_deadline=Duration(3600.0), stop_grace=Duration(5.0)), "1ee5e7cffe4fb214"),
    (Profile("llamacpp", "mod\u00e8le \u00e9.gguf", probe="embedding"), "b792442d07c2dc75"),
]
"""These hold for ever: a hash that moves with a release would restart every replica of every fleet at its upgrade."""

fewer = settings(max_examples=settings().max_examples // 10)
"""A tenth of what the profile draws: there is little to find in a class of plain values."""

profiles = st.builds(
    Profile,
    engine=st.sampled_from(["llamacpp", "vllm"]),
    model=st.text(max_size=5),
    args=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    env=st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.builds(Secret, st.text(max_size=3)), max_size=3),
    gpus=st.integers(0, 8),
    gpu_memory=st.none() | st.integers(1, 2**40).map(Size),
    probe=st.sampled_from(["chat", "embedding"]),
    listener_check=st.booleans(),
    stop_grace=st.floats(0, 100).map(Duration),
)


@pytest.mark.parametrize(("profile", "pinned"), PINNED)
def test_spec_hash_is_pinned(profile: Profile, pinned: str) -> None:
    assert spec_hash(profile) == pinned


def test_spec_hash_is_what_the_rule_says() -> None:
    """The first 16 hex digits of the SHA-256 of the JSON of what differs from its default."""
    text = b'{"engine":"llamacpp","model":"tiny.gguf"}'
    assert spec_hash(Profile("llamacpp", "tiny.gguf")) == hashlib.sha256(text).hexdigest()[:16]


@fewer
@given(profiles)
def test_a_setting_at_its_default_is_as_if_it_were_left_out(profile: Profile) -> None:
    """Property: an upgrade that adds a setting rolls nothing, since nobody has set it."""
    settings = canonical(profile)
    for field in attrs.fields(Profile):
        default = field.default.factory() if field.name == "env" else field.default  # type: ignore[union-attr]
        assert (field.name in settings) == (getattr(profile, field.name) != default)


@fewer
@given(profiles, profiles)
def test_equal_hashes_mean_equal_profiles(one: Profile, other: Profile) -> None:
    """Property: a change of any setting is a new launch, and no change is none."""
    assert (spec_hash(one) == spec_hash(other)) == (one == other)


@fewer
@given(profiles)
def test_the_order_of_variables_is_no_change(profile: Profile) -> None:
    """Property: a file in which somebody sorted the variables restarts nothing."""
    turned = attrs.evolve(profile, env=dict(reversed(profile.env.items())))
    assert spec_hash(turned) == spec_hash(profile)


def test_what_is_not_the_profile_is_not_in_the_hash() -> None:
    """Labels, endpoints and the rest have classes of their own, which a profile does not hold."""
    held = {field.type for field in attrs.fields(Profile)}
    assert not held & {Placement, StaticEndpoint, Strategy}
