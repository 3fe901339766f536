"""One file per table or figure: `run(config)` returns numbers, `main` parses and writes."""
