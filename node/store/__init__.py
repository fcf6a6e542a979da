"""Durable storage: received objects, readings, outputs and finished rounds as files; states in databases."""
