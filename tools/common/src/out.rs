//! Standard output for tools: every line leaves at once, and a reader that went away ends the program quietly.
//! Used by all printing. Never panics on a closed pipe.

use std::io::{self, Write};

/// Exit status of a tool whose reader went away: what a shell reports for a program ended by SIGPIPE.
pub const BROKEN_PIPE: i32 = 128 + 13;

/// Words that others may have chosen, without what a terminal takes for orders.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Writes one line. If nobody reads any more, the program ends; on any other error the line is lost.
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
    fn a_terminal_gets_no_orders() {
        assert_eq!(printable("a\nb\x1b[2J\u{9b}c \u{e4}"), "a b [2J c \u{e4}");
    }
}
