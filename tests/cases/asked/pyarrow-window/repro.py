"""pyarrow 25.0.0 dies now and then when one thread imports it and another converts (apache/arrow#50471)."""

import threading


def imp():
    """Import it."""
    import pyarrow  # noqa: F401


def alloc():
    """Convert with it."""
    import pyarrow as pa

    pa.array(["x"] * 5000)


for target in (imp, alloc):
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
