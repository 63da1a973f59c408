"""One proof program for all tests here: it imports torch once."""

from collections.abc import Iterator

import pytest

from meshwright.prove.program import ProofProgram


@pytest.fixture(scope="session")
def warm() -> Iterator[ProofProgram]:
    with ProofProgram() as program:
        yield program
