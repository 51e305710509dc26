"""Every verdict that can be made is stored, and read back as it was."""

from __future__ import annotations

import json
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from bisect_env.answers.verdict_document import VerdictDocument
from bisect_env.storage.rows import model_value, read

TEXT = st.text("abcé1.*<>= ", max_size=8)
"""No passwords and no control characters: these are left out of what is stored."""


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation of the model, as JSON can hold them."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is str:
        return TEXT
    if kind is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (Union, UnionType):
        return st.one_of(*map(values, inner))
    if origin is tuple:
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXT, values(inner[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return st.builds(kind, **{name: values(f.annotation) for name, f in kind.model_fields.items()})
    found: st.SearchStrategy[Any] = st.from_type(kind)
    return found


@settings(max_examples=50, deadline=None)
@given(values(VerdictDocument))
def test_a_verdict_is_read_back_as_it_was_stored(verdict: VerdictDocument) -> None:
    stored = json.loads(json.dumps(model_value(verdict), allow_nan=False))
    assert read(VerdictDocument, stored, "study x", "verdict") == verdict
