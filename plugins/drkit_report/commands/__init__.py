"""The commands `drkit report`, `drkit serve` and `drkit inspect`."""
