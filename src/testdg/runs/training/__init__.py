"""Training of source models: recipes for classifiers and maps, models that are kept or fine-tuned; see `fitting`."""
