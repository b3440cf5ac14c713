"""An adapting model behind an address: named streams, learning on a thread of its own, and a page."""
