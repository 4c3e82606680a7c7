"""What runs once on every machine: the processes that start workers, and what they write."""
