"""An answer is an append-only `log` that readers follow, with a `record` on disk; the `shelf` bounds all answers. This
package knows neither HTTP nor the master's sockets."""
