"""What can go wrong: one file per fault, settings only. How a pull is done, and taken back, is the lab's."""
