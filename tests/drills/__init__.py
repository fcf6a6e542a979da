"""Programs that try the node for longer than a test may take, and short forms of them as tests."""
