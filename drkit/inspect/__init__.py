"""Inspect what a masker hides of a text and which words a vector predicts, as plain data."""
