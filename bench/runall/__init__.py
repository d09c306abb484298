"""The parts of bench/run-all."""
