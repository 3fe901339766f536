"""Everything theorem experiments are made of: claims, their command line, and their parts.

Modules named after an experiment (`credit_errors`, `drift_growth`, ...) hold parts of it that are
too long for one file.
"""

from experiments.theory.command import (
    Experiment,
    Say,
    exit_code,
    main,
    new_run,
    run_and_write,
    show,
    silent,
    use_compilation_cache,
    write,
    write_claims,
)

__all__ = [
    "Experiment",
    "Say",
    "exit_code",
    "main",
    "new_run",
    "run_and_write",
    "show",
    "silent",
    "use_compilation_cache",
    "write",
    "write_claims",
]
