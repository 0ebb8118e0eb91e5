"""Multi-head attention into grouped-query and multi-query attention, and back."""
