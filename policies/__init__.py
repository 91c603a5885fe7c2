"""What an operator may say, and how it is read, judged and merged."""
