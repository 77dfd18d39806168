"""What a pre-training trains: masked views, the bottlenecked auto-encoder, and probes of it."""
