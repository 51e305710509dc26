"""One study from matrix to verdict: prepare, then ask → submit → record → tell until it is decided."""
