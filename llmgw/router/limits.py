"""Who may ask for what: the keys of `[[keys]]`. Only hashes are known here."""

import hashlib
import hmac

from llmgw.core.routing import ClientKey
from llmgw.router.dialects import Problem, Trouble
from llmgw.router.http import RequestHead

_NOBODY = ("0" * 64, ClientKey("", "0" * 64))


def presented(head: RequestHead) -> bytes:
    """The key that a request carries: of `Authorization: Bearer`, else of `x-api-key` or `api-key`; empty: none."""
    scheme, _, key = head.authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return b"" if head.authorization else head.api_key


class Keys:
    """The keys in force."""

    def __init__(self, keys: tuple[ClientKey, ...]) -> None:
        self.required = bool(keys)
        """Whether any request needs one."""
        self._by_hash = {key.sha256.lower(): (key.sha256.lower(), key) for key in keys}
        self._allowed = {key.sha256.lower(): frozenset(key.models) for key in keys}

    def check(self, key: bytes) -> ClientKey | None:
        """Whose key it is; None where no key is needed. Raises Problem.

        A wrong key takes as long as a right one: what is looked up is its hash, which nobody can steer byte by byte.
        """
        if not self.required:
            return None
        digest = hashlib.sha256(key).hexdigest()
        expected, found = self._by_hash.get(digest, _NOBODY)
        if not hmac.compare_digest(expected, digest):
            reason = "expected `Authorization: Bearer KEY`" if not key else "it is not one of this gateway's"
            raise Problem(Trouble.INVALID_KEY, f"invalid API key: {reason}")
        return found

    def allows(self, key: ClientKey | None, model: str) -> bool:
        """Whether the holder of `key` may use the model of that catalog name."""
        if key is None or not key.models:
            return True
        return model in self._allowed.get(key.sha256.lower(), frozenset())
