"""What every part of the client needs and what knows none of them: checks of arguments, arrays, displays."""
