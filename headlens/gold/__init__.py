"""What annotators say the answer is: the decisions that heads are scored on, word by word. No torch here."""
