"""The results database: studies, combinations, locks, trials and decisions, for many writers at once."""
