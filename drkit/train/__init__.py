"""Training: batches, gradients, the Trainer, and what is trained: auto-encoders, retrievers, re-rankers."""
