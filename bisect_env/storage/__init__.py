"""The results database: studies, combinations, locks, trials and decisions, safe with many writers."""
