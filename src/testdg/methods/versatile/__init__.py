"""Versatile: `labels` are pseudo-labels, filtered, corrected and weighted."""
