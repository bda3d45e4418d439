"""The studies of part 3: what each level of memory takes and gives, and where one ends and the next begins."""
