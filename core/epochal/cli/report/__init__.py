"""`epochal report`: what goes into its archive, and what is redacted before."""
