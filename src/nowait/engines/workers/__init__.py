"""The engine of real workers, wherever they run: decisions (``workforce``), the event loop, and what a transport is."""
