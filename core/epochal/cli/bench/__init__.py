"""What `epochal bench` computes and measures; the command itself is in `epochal.cli.commands.bench`."""
