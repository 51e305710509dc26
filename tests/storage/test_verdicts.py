"""Every verdict that can be made is stored, and read back as it was."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.storage.rows import verdict_of, verdict_value

TEXT = st.text("abcé1.*<>= ", max_size=8)
"""No passwords and no control characters: these are left out of what is stored."""
st.register_type_strategy(str, TEXT)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))


@settings(max_examples=50, deadline=None)
@given(st.from_type(VerdictDocument))
def test_a_verdict_is_read_back_as_it_was_stored(verdict: VerdictDocument) -> None:
    stored = json.loads(json.dumps(verdict_value(verdict), allow_nan=False))
    assert verdict_of(stored, "study x") == verdict
