//! Standard output of tools: each line is flushed at once, and a closed pipe ends the program quietly.

use std::io::{self, Write};

/// Exit status after a closed pipe: what a shell reports for SIGPIPE.
pub const BROKEN_PIPE: i32 = 128 + 13;

/// Replaces control characters, so that text of others cannot send commands to a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Writes one line. Ends the program if the reader is gone; drops the line on any other error.
pub fn line(text: impl AsRef<str>) {
    let mut out = io::stdout().lock();
    let text = text.as_ref();
    let done = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    if let Err(e) = done
        && e.kind() == io::ErrorKind::BrokenPipe
    {
        std::process::exit(BROKEN_PIPE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_removed() {
        assert_eq!(printable("a\nb\x1b[2J\u{9b}c \u{e4}"), "a b [2J c \u{e4}");
    }
}
