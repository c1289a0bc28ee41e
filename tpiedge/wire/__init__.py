"""Messages and their encoding: no socket, no thread, no tensor library."""
