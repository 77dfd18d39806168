"""What a masker hides of a text, and which words a vector holds: plain data, for the command line or a notebook."""
