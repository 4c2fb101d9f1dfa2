"""One module per group of commands. Heavy imports happen inside the functions, so that `--help` stays fast."""
