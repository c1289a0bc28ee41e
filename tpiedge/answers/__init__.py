"""An answer is an append-only `log`, kept on disk by `record`. `shelf` bounds all answers."""
