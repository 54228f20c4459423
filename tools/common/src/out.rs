//! Standard output of tools: each line is flushed at once. A closed pipe ends the program quietly, another
//! failure with a line on standard error.

use std::io::{self, Write};

/// Exit status after a closed pipe: what a shell reports for SIGPIPE.
pub const BROKEN_PIPE: i32 = 128 + 13;

/// Exit status after another failure to write, such as on a full disk.
pub const LOST_OUTPUT: i32 = 255;

/// Replaces control characters, so that text of others cannot send commands to a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Writes one line. Ends the program if it cannot be written.
pub fn line(text: impl AsRef<str>) {
    let mut out = io::stdout().lock();
    let text = text.as_ref();
    let done = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    match done {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(BROKEN_PIPE),
        Err(e) => {
            let program = std::env::args_os().next().unwrap_or_default();
            let name = std::path::Path::new(&program).file_name().unwrap_or_default();
            ucs::stderr_line!("{}: cannot write to standard output: {e}", name.display());
            std::process::exit(LOST_OUTPUT);
        }
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
