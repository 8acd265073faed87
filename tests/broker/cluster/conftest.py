"""What several test files of this folder are given."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from .two_nodes import Two, opened


@pytest.fixture
def two() -> AbstractAsyncContextManager[Two]:
    return opened()
