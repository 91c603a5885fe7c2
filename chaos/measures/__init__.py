"""What a history comes to, in numbers. Pure; whether the numbers are good enough is for the checks to say."""
