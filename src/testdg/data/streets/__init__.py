"""Street scenes drawn by code: pictures, label maps and geometry."""
