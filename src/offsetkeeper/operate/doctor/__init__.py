"""What is wrong with a set-up: facts, rules over them, and what collects the facts."""
