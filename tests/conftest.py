from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes, or is in the making, says how busy the machine is; pytest ends what hangs.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
