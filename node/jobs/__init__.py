"""Durable work: workflows, their steps and queues, retries, and the processes that share the work."""
