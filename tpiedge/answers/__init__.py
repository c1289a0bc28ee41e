"""`log` keeps the events of one answer, `record` keeps them on disk, and `shelf` bounds all answers."""
