"""Which heads matter: what a model loses without each, and how sure that is."""
