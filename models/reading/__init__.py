"""Answers prompts and boxes about one film; numpy only, whatever the engine."""
