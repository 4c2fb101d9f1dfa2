"""MiniLM, packaged: a small neural embedder on onnxruntime, without torch and without the network."""
