"""One training of any module: batches decided beforehand, gradients however a batch is cut, whole checkpoints."""
