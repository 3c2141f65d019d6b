"""`epochal report`: what goes into its archive, and what is taken out of that before."""
