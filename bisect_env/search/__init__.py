"""The search for the first bad combination: hypotheses, posterior, what to try next, when to stop. Pure."""
