"""What survives a power cut: received objects, readings, outputs and finished rounds as files, states in databases."""
