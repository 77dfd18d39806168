"""What a masker hides of a text and which words a vector predicts, as plain data, on a terminal and as a page."""
