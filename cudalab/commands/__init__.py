"""The verbs of the command, thin: they read options, call the package and print."""
