"""RoTTA: `memory` holds images, balanced over classes."""
