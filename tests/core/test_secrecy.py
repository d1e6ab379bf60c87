import pytest

from llmgw.core.secrecy import names_secret


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
