"""The secret of a run, from which the run's test points are drawn.

If a model knew the test points, it could write an answer that agrees with several gold answers at all these points.
"""

from __future__ import annotations

import hmac
import os
import re
from functools import lru_cache
from random import Random

from rstar2.errors import UserError

VARIABLE = "RSTAR2_GRADER_SECRET"
"""The environment variable that holds the secret in hexadecimal digits. Child processes inherit the variable."""
_BYTES = 32


def secret() -> bytes:
    """Returns the secret of the run. If the environment holds no secret, the first call creates a secret.

    Raises UserError if the environment variable does not consist of hexadecimal digits, or if the count of digits is
    odd or less than 16.
    """
    text = os.environ.get(VARIABLE)
    if not text:
        text = os.environ[VARIABLE] = os.urandom(_BYTES).hex()
    return _decoded(text)


@lru_cache(maxsize=8)
def _decoded(text: str) -> bytes:
    if not re.fullmatch(r"(?:[0-9a-fA-F]{2}){8,}", text):
        raise UserError(
            f"{VARIABLE} does not consist of hexadecimal digits (an even count, at least 16); unset the variable, or"
            f" set it to digits such as {os.urandom(_BYTES).hex()}"
        )
    return bytes.fromhex(text)


def keyed_number(*texts: str) -> int:
    """Returns a number of 256 bits that depends only on the secret and the texts (HMAC-SHA-256, RFC 2104)."""
    return int.from_bytes(hmac.digest(secret(), "\0".join(texts).encode(), "sha256"), "big")


def keyed_random(*texts: str) -> Random:
    """Returns a random generator whose seed depends only on the secret and the texts."""
    return Random(keyed_number(*texts))
