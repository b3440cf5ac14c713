"""An adapting model behind an address: named streams, learning beside the predictions, a page to watch it."""
