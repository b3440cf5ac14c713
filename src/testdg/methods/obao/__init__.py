"""OBAO: `memory` is its buffer of test images, `class_graph` the relations between classes."""
