"""Commands of single rooms, registered by `cli`. They know every room and import it only when called."""
