"""What the processes of a run exchange: records, vectors in shared memory, and messages between machines."""
