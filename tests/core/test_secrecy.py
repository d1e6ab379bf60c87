import pytest

from llmgw.core.secrecy import hide_in_args, names_secret


@pytest.mark.parametrize(
    "name",
    ["key", "api_key", "HF_TOKEN", "Authorization", "x-api-key", "apiKey", "db.password", "AWS_CREDENTIALS", "cookie"],
)
def test_names_of_secrets(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize(
    "name", ["", "key_file", "max_tokens", "keys", "monkey", "tokens", "keyring_size", "args", "0"]
)
def test_names_of_no_secret(name: str) -> None:
    assert not names_secret(name)


def test_values_of_secret_options_are_hidden() -> None:
    args = ["serve", "--api-key", "a", "b", "--max-tokens", "5", "--hf-token=c", "-x", "--api-key-file", "/k", "--key"]
    assert hide_in_args(args) == (
        *("serve", "--api-key", "***", "***", "--max-tokens", "5", "--hf-token=***", "-x", "--api-key-file", "/k"),
        "--key",
    )
