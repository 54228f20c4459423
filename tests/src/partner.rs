//! The second process of a two-process suite: this program again in another role, with lines of JSON over
//! pipes. Knows nothing of transports; reports when the other process is gone.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::Duration;

/// The other process. Dropping the parent's end kills the child and waits for it.
pub struct Partner {
    out: Box<dyn Write>,
    lines: Receiver<String>,
    /// Lines taken by [`Partner::is_gone`] and not received yet.
    buffered: VecDeque<String>,
    child: Option<Child>,
}

/// Why nothing can be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum PartnerError {
    /// It has ended, or closed its end.
    #[error("the partner process has ended")]
    Gone,
    /// Nothing came within the timeout.
    #[error("the partner process did not answer within {0:?}")]
    Timeout(Duration),
    /// It sent something else than expected.
    #[error("the partner process sent something unexpected: {0}")]
    Unexpected(String),
    /// It cannot be started.
    #[error("cannot start the partner process: {0}")]
    Start(std::io::Error),
}

impl Partner {
    /// Starts this program again with `args`; its standard error is ours.
    pub fn start(args: &[String]) -> Result<Partner, PartnerError> {
        Partner::start_under(&[], args)
    }

    /// Starts this program again through `launcher`, a program and arguments to which ours are added.
    pub fn start_under(launcher: &[&str], args: &[String]) -> Result<Partner, PartnerError> {
        let me = std::env::current_exe().map_err(PartnerError::Start)?;
        let command = match launcher {
            [] => Command::new(me),
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest).arg(me);
                command
            }
        };
        Partner::run(command, args)
    }

    /// Starts another program with `args`.
    pub fn start_program(program: &str, args: &[String]) -> Result<Partner, PartnerError> {
        Partner::run(Command::new(program), args)
    }

    fn run(mut command: Command, args: &[String]) -> Result<Partner, PartnerError> {
        let mut child = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(PartnerError::Start)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(PartnerError::Gone);
        };
        Ok(Partner {
            out: Box::new(stdin),
            lines: reader(stdout),
            buffered: VecDeque::new(),
            child: Some(child),
        })
    }

    /// The process that started this one.
    pub fn parent() -> Partner {
        Partner {
            out: Box::new(std::io::stdout()),
            lines: reader(std::io::stdin()),
            buffered: VecDeque::new(),
            child: None,
        }
    }

    /// Process id of the child; `None` in the child.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends a value.
    pub fn send<T: Serialize>(&mut self, what: &T) -> Result<(), PartnerError> {
        let mut line = serde_json::to_string(what).map_err(|e| PartnerError::Unexpected(e.to_string()))?;
        line.push('\n');
        self.out.write_all(line.as_bytes()).and_then(|()| self.out.flush()).map_err(|_| PartnerError::Gone)
    }

    /// Waits for the next value, at most for `timeout`.
    pub fn recv<T: DeserializeOwned>(&mut self, timeout: Duration) -> Result<T, PartnerError> {
        if let Some(line) = self.buffered.pop_front() {
            return parse(&line);
        }
        match self.lines.recv_timeout(timeout) {
            Ok(line) => parse(&line),
            Err(RecvTimeoutError::Timeout) => Err(PartnerError::Timeout(timeout)),
            Err(RecvTimeoutError::Disconnected) => Err(PartnerError::Gone),
        }
    }

    /// Receives the next value if it has come.
    pub fn try_recv<T: DeserializeOwned>(&mut self) -> Result<Option<T>, PartnerError> {
        if let Some(line) = self.buffered.pop_front() {
            return parse(&line).map(Some);
        }
        match self.lines.try_recv() {
            Ok(line) => parse(&line).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(PartnerError::Gone),
        }
    }

    /// Whether the other process has ended or closed its end. Lines sent before can still be received.
    pub fn is_gone(&mut self) -> bool {
        loop {
            match self.lines.try_recv() {
                Ok(line) => self.buffered.push_back(line),
                Err(e) => return e == TryRecvError::Disconnected,
            }
        }
    }

    /// Waits for the child to exit; `true` if it did with success. Always `true` in the child.
    pub fn exited_ok(mut self) -> bool {
        self.child.take().is_none_or(|mut child| child.wait().is_ok_and(|status| status.success()))
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Both fail only if it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends each line to a channel, which is closed at the end of the stream.
fn reader(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (tx, rx) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if tx.send(line).is_err() {
                break;
            }
        }
    });
    rx
}

fn parse<T: DeserializeOwned>(line: &str) -> Result<T, PartnerError> {
    serde_json::from_str(line).map_err(|_| PartnerError::Unexpected(line.to_owned()))
}
