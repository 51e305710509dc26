"""What a trial's classification wants to know of the GPUs that it runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class GpuWatch(Protocol):
    """Watches the GPUs of one trial while it runs."""

    def reported(self) -> Sequence[int]:
        """Xids that the driver has reported of them since the trial began, in order."""
        ...

    def busy(self) -> float | None:
        """Share of the last moments in which a kernel ran on any of them; None when that cannot be read."""
        ...
