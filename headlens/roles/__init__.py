"""From scores to names: which roles each head has, by rules that stand in one place. No torch here."""
