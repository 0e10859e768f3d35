"""The operations of an operator: questions about a group, and changes of it."""
