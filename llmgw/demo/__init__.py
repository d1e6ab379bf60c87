"""What `scripts/demo` runs: a tiny model made on the spot, and the show itself."""
