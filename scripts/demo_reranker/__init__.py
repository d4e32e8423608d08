"""Trains the demo reranker, a LoRA adapter on all-MiniLM-L6-v2: scripts/train_demo_reranker."""
