"""What a fine-tuning trains: pairs with negatives, bi-encoders, re-rankers, teachers and validation."""
