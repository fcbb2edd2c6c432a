"""Flow runs: reading, steering and checking them, and the step that ends a stage."""
