"""One process of the service: construction, start and stop, its HTTP server, its retention."""
