"""Training of source models: recipes for classifiers and maps, cached models, and fine-tuning; see `core.fitting`."""
